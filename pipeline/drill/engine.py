"""Faults of a running engine and of the artifact that it serves, against the same one without them.

by_ab        interleaved rounds decide (`seatrial ab`), and the diagnosis of the last pair names
by_round     one round of each: rules on its records, and the diagnosis of the two
by_answers   greedy answers to the same items, and the diagnosis of the two
by_seeds     sampled answers with equal and with other seeds
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml

from loadtests.workload import Profile
from pipeline.ab.compare import compare_builds
from pipeline.ab.quality import answer_of, judged_answers
from pipeline.ab.rounds import Which, run_round
from pipeline.ab.seeds import seed_problems
from pipeline.ab.sides import Project, Side, side_of
from pipeline.diagnosis.inputs import Run, read_run_folder
from pipeline.diagnosis.quality import quality
from pipeline.diagnosis.walk import walk
from pipeline.drill.damage import Damage, damaged, doubled_bos, scale_of_one_layer, wrong_template
from pipeline.drill.fault import Fault, Part, Seen
from pipeline.evaluation.items import EVALSETS, load_evalset
from pipeline.evaluation.run import Judged, select
from pipeline.files import atomic_write
from pipeline.load.idle import PROMPTS
from pipeline.load.measure import read_profile
from pipeline.stage import Stage

SEAMS = "pipeline.drill.seams"
MIXED: dict[str, Any] = {
    "name": "drill", "kind": "smoke", "drain_s": 10, "output": {"fixed_by": "ignore_eos"},
    "stages": [
        {"name": "mixed", "warmup_s": 2, "duration_s": 10, "arrivals": {"kind": "closed", "concurrency": 6},
         "prompt_tokens": {"kind": "lognormal", "median": 100, "sigma": 0.9, "min": 16, "max": 700},
         "output_tokens": {"kind": "uniform", "min": 8, "max": 40}, "system": "shared"},
    ],
}  # fmt: skip
# What the profile of `seatrial ab` has not: long prompts that come while others answer.
LONG: dict[str, Any] = {
    "name": "drill-long", "kind": "smoke", "drain_s": 10, "output": {"fixed_by": "ignore_eos"},
    "stages": [
        {"name": "long", "warmup_s": 2, "duration_s": 12, "arrivals": {"kind": "closed", "concurrency": 4},
         "prompt_tokens": {"kind": "fixed", "tokens": 1400}, "output_tokens": {"kind": "fixed", "tokens": 16}},
    ],
}  # fmt: skip
UNCHUNKED = "config:max_num_batched_tokens=2048,prefill_chunk_tokens=2048"
INT8_KV = {"kv_dtype": "int8"}


@dataclass
class Engines:
    """What the drills on an engine have in common: the project, and the base, which is measured once a kind."""

    project: Project
    folder: Path
    minutes: float
    items: int
    seed: int = 7
    _answers: dict[str, list[Judged]] = field(default_factory=dict, repr=False)
    _round: Run | None = field(default=None, repr=False)

    @property
    def artifact(self) -> str:
        return str(Path("artifacts") / self.project.tier)

    def base(self) -> Side:
        return side_of(self.artifact, self.project)

    def asked_for(self, settings: Mapping[str, Any]) -> Engines:
        """The same with other settings of the engine, on both sides."""
        engine = self.project.params.engine.model_copy(update=dict(settings))
        params = self.project.params.model_copy(update={"engine": engine})
        return replace(self, project=replace(self.project, params=params), _round=None)

    def base_answers(self) -> list[Judged]:
        base = self.base()
        digest = base.identities[1].digest
        if digest not in self._answers:
            self._answers[digest] = self.answers(base, f"base-{digest[:8]}")
        return self._answers[digest]

    def answers(self, side: Side, name: str) -> list[Judged]:
        params = self.project.params
        evalset = load_evalset(EVALSETS / params.evaluation.evalset)
        items = select(evalset.items, self.items)
        log = self.folder / f"answers-{name}.log"
        return judged_answers(side, items, params.evaluation.concurrency, log, Stage("drill", name))

    def base_round(self) -> Run:
        self._round = self._round or self.round(self.base(), "base")
        return self._round

    def profile(self, content: Mapping[str, Any]) -> str:
        """Writes it; its path, by which a profile may be named too."""
        path = self.folder / f"{content['name']}.yaml"
        atomic_write(path, yaml.safe_dump(dict(content)))
        return str(path)

    def round(self, side: Side, name: str) -> Run:
        path = self.profile(MIXED)
        profile: Profile = read_profile(path)
        which: Which = "base" if name == "base" else "candidate"
        run_round(side, which, 0, profile, path, self.seed, self.folder / name, PROMPTS)
        return read_run_folder(str(self.folder / name))


def by_ab(
    given: str,
    causes: tuple[str, ...],
    blocking: Mapping[str, list[str]] | None = None,
    profile: Mapping[str, Any] | None = None,
) -> _Drill:
    """Caught if the candidate is held, under the policy of a pull request but for the minutes; named by the cause that
    its report gives. ``profile``, ``blocking``: others than the policy's.
    """

    def run(engines: Engines, root: Path) -> Seen:
        changes: dict[str, Any] = {"budget_minutes": engines.minutes}
        if blocking is not None:
            changes["blocking"] = {k: list(v) for k, v in blocking.items()}
        if profile is not None:
            changes["profile"] = engines.profile(profile)
        params = engines.project.params.ab.model_copy(update=changes)
        base, candidate = engines.base(), side_of(given, engines.project)
        value = compare_builds(base, candidate, params, engines.seed, root / "rounds", Stage("drill", None))
        if value["broken_off"] is not None:  # no pair to take apart
            return Seen(value["verdict"] == "hold", False, f"ab: {value['verdict']}", value["reason"])
        found = [] if value["cause"] is None else [c["cause"] for c in value["cause"]["causes"]]
        said = f"{value['reason']} Diagnosis: {', '.join(found) or 'not explained'}"
        return Seen(value["verdict"] == "hold", bool(set(found) & set(causes)), _held_by(value), said)

    return run


def _held_by(value: Mapping[str, Any]) -> str:
    """What of ab.json held: counts, then figures."""
    rows = [(r, r["count"]) for r in value["work"]] + [(r, r["figure"]) for r in value["estimates"]]
    failing = [f"{r['stage']} {name}" for r, name in rows if r["blocking"] and r["outcome"] == "fail"]
    return f"ab: {', '.join(failing) if failing else value['verdict']}"


def by_round(given: str, causes: tuple[str, ...], caught: Callable[[Run, Run], str | None]) -> _Drill:
    """Caught if ``caught`` says by which rule."""

    def run(engines: Engines, root: Path) -> Seen:
        base = engines.base_round()
        mine = engines.round(side_of(given, engines.project), root.name)
        findings = walk(mine, base)
        found = [c for f in findings for c in f.causes if c.code in causes]
        rule = caught(mine, base)
        said = found[0].figure if found else "; ".join(f.figure for f in findings)
        return Seen(rule is not None, bool(found), rule or "no rule", said)

    return run


def by_answers(
    given: str, causes: tuple[str, ...], damage: Damage | None = None, settings: Mapping[str, Any] | None = None
) -> _Drill:
    """Caught if answers are worse, or if an engine that keeps its bytes answers otherwise on the same artifact.

    Args:
        settings: of both engines, beside the project's.
    """

    def run(engines: Engines, root: Path) -> Seen:
        engines = engines.asked_for(settings or {})
        base = engines.base_answers()
        text = given or str(damaged(Path(engines.artifact), root / engines.project.tier, damage or doubled_bos))
        side = side_of(text, engines.project)
        mine = engines.answers(side, root.name)
        original = engines.base()
        finding = quality(_run(mine, "drill", side), _run(base, "base", original))
        changed = sum(answer_of(a) != answer_of(b) for a, b in zip(mine, base, strict=True))
        same_artifact = side.identities[2] == original.identities[2]
        caught = finding.state == "worse" or bool(finding.causes) or (same_artifact and changed > 0)
        codes = [c.code for c in finding.causes] or (["engine"] if same_artifact and changed else [])
        said = f"{changed} of {len(mine)} answers changed; {finding.figure}; {', '.join(codes) or 'not explained'}"
        by = f"quality: {codes[0]}" if codes else f"quality: {finding.state}"
        return Seen(caught, bool(set(codes) & set(causes)), by, said)

    return run


def by_seeds(given: str) -> _Drill:
    def run(engines: Engines, root: Path) -> Seen:
        side = side_of(given, engines.project)
        root.mkdir(parents=True, exist_ok=True)
        with side.open(root / "server.log") as target:
            problems = seed_problems(target.base_url, target.model_name)
        return Seen(bool(problems), bool(problems), "ab --quality: seeds", "; ".join(problems) or "seeds are kept")

    return run


_Drill = Callable[[Engines, Path], Seen]


def _run(answers: list[Judged], name: str, side: Side) -> Run:
    """As rows of items.jsonl and the header of load.json, of which the diagnosis reads these."""
    rows = [
        {
            "id": j.answered.item.id, "kind": j.answered.item.kind, "score": float(j.grade.correct),
            "finish_reason": j.answered.reply.finish_reason if j.answered.reply else None,
            "prompt_tokens": j.answered.reply.prompt_tokens if j.answered.reply else None,
            "answer": j.answered.reply.text if j.answered.reply else None,
        }
        for j in answers
    ]  # fmt: skip
    header = {"quantisation": side.identities[2].model_dump()}
    return Run(name, {"header": header}, None, None, None, None, rows)


def _cut_short(mine: Run, base: Run) -> str | None:
    return _by_rule(mine, "truncation")


def _errors(mine: Run, base: Run) -> str | None:
    return _by_rule(mine, "errors")


def _by_rule(run: Run, kind: str) -> str | None:
    """The policy's own rule on the round's records, where it does not pass."""
    from pipeline.gate.context import Context
    from pipeline.gate.inputs import TierRun
    from pipeline.gate.policy import read_policy
    from pipeline.gate.rules import JUDGES
    from pipeline.params import load_params

    params = load_params()
    policy = read_policy(params.gate, params.tiers)
    tier = TierRun(run.name, records=run.records, load=run.load)
    context = Context(tier, tier, None, None, None, policy)
    found = [r for rule in policy.rules if rule.id == kind for r in JUDGES[rule.kind](rule, context)]
    bad = next((r for r in found if r.outcome == "fail"), None)
    return None if bad is None else f"{bad.id}: {bad.outcome}"


def _books(mine: Run, base: Run) -> str | None:
    """The KV pool's own check when nothing runs, which the server counts."""
    after = (mine.server or {}).get("metrics_after") or {}
    wrong = sum(float(v) for k, v in after.items() if k.startswith("seatrial_kv_integrity_errors"))
    return f"kv_integrity_errors: {wrong:.0f}" if wrong else None


# id, part, what is planted, how it is run
TABLE: list[tuple[str, Part, str, _Drill]] = [
    ("prefill-10", "engine", "prefill 10 % slower", by_ab(f"seam:{SEAMS}:PrefillSlower10", ("prefill_compute",))),
    ("decode-10", "engine", "decode 10 % slower", by_ab(f"seam:{SEAMS}:DecodeSlower10", ("decode_compute",))),
    ("stall", "engine", "all stands still for 0.4 s every 2 s", by_ab(f"seam:{SEAMS}:Stalls", ("stall",))),
    ("batching-off", "engine", "batching: static", by_ab("config:batching=static", ("settings", "admission"))),
    (
        "chunking-off",
        "engine",
        "prompts computed whole, while decodes wait",
        by_ab(UNCHUNKED, ("prefill_interference",), {"long": ["itl-p95"]}, LONG),
    ),
    (
        "prefix-cache-off",
        "engine",
        "the prefix cache never hits",
        by_ab(f"seam:{SEAMS}:ForgetsPrefixes", ("cold_cache",)),
    ),
    (
        "kv-scales-lost",
        "engine",
        "int8 keys and values with scales of 1",
        by_answers(f"seam:{SEAMS}:LosesKvScales", ("engine", "context"), settings=INT8_KV),
    ),
    ("small-batch", "engine", "two places in the batch", by_ab("config:max_num_seqs=2", ("settings", "queue"))),
    (
        "blocks-leaked",
        "engine",
        "a block of each request stays in use",
        by_round(f"seam:{SEAMS}:LeaksBlocks", ("leak",), _books),
    ),
    (
        "truncation",
        "engine",
        "answers cut short while others run",
        by_round(f"seam:{SEAMS}:TruncatesUnderLoad", ("cut_short",), _cut_short),
    ),
    (
        "refusals",
        "engine",
        "every tenth request refused",
        by_round(f"seam:{SEAMS}:DropsRequests", ("failing",), _errors),
    ),
    (
        "wrong-blocks",
        "engine",
        "a prefix hit finds the blocks of another",
        by_answers(f"seam:{SEAMS}:EvictsTheWrongBlocks", ("engine", "context")),
    ),
    (
        "stop-token-lost",
        "engine",
        "no stop token is known",
        by_answers(f"seam:{SEAMS}:LosesStopTokens", ("stop_handling",)),
    ),
    ("seed-ignored", "engine", "the seed of a request is not used", by_seeds(f"seam:{SEAMS}:IgnoresSeeds")),
    (
        "corrupted-scale",
        "artifact",
        "one layer's scales sixteen times too large",
        by_answers("", ("tier",), scale_of_one_layer),
    ),
    ("wrong-template", "artifact", "another family's chat template", by_answers("", ("template",), wrong_template)),
    ("doubled-bos", "artifact", "the first token twice", by_answers("", ("template",), doubled_bos)),
]


def faults(engines: Engines) -> Iterator[Fault]:
    """Those that need a model and minutes."""
    for id, part, what, drill in TABLE:
        yield Fault(id, part, what, lambda root, run=drill: run(engines, root), short=False)  # type: ignore[misc]
