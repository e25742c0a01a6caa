"""A recorded trace made to fit a stage: its time, its rate, a model's context. What was changed is in ``Scaling``."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from loadtests.arrivals import Replay
from loadtests.distributions import Strict
from loadtests.quantiles import nearest_rank
from loadtests.replay.formats import Recorded, Row

QUANTILES = {"p50": 0.5, "p95": 0.95, "p99": 0.99, "max": 1.0}


class Planned(NamedTuple):
    """One request to send: due at ``due_s`` of the stage, or up to ``spread_s`` later."""

    due_s: float
    spread_s: float
    prompt_tokens: int
    output_tokens: int
    blocks: tuple[int, ...]


class Change(Strict):
    """A figure of the trace's window, and of what is sent for it."""

    recorded: dict[str, int]
    replayed: dict[str, int]


class Scaling(Strict):
    """What a replay changed; goes into ``run.json`` with its stage."""

    form: str
    sha256: str | None
    rows: int
    unusable: dict[str, int]  # rows of the whole file that cannot be sent, by reason
    from_s: float
    to_s: float  # of the trace
    rate_factor: float
    recorded_per_s: float
    replayed_per_s: float
    same_time: int  # requests of the window whose recorded time is also the one before's
    spread_s: float
    requests: int
    length_factor: float
    output_factor: float
    block_tokens: int | None  # what a block of the trace has become; None: it has none
    cut_prompts: int
    cut_outputs: int
    dropped: int  # too long for the context, and ``longer`` says so
    prompt_tokens: Change
    output_tokens: Change
    shared_share: tuple[float, float] | None  # of the prompt tokens: in blocks seen before, recorded and replayed

    def lines(self) -> list[str]:
        """What was changed, for people."""
        out = [
            f"{self.form} trace, {self.from_s:g} to {self.to_s:.0f} s: {self.requests} requests at "
            f"{self.replayed_per_s:.3g}/s (recorded {self.recorded_per_s:.3g}/s, rate factor {self.rate_factor:.4g})",
            f"lengths: prompts times {self.length_factor:.4g}, outputs times {self.output_factor:.4g}; "
            f"{self.cut_prompts} prompts and {self.cut_outputs} outputs cut, {self.dropped} requests dropped as too "
            "long for the context",
        ]
        for name, change in (("prompt", self.prompt_tokens), ("output", self.output_tokens)):
            of, to = ("/".join(str(c[q]) for q in QUANTILES) for c in (change.recorded, change.replayed))
            out.append(f"{name} tokens {'/'.join(QUANTILES)}: recorded {of}, replayed {to}")
        if self.shared_share is None:
            out.append("prefixes: the trace has none; each prompt is unlike the others")
        else:
            was, now = self.shared_share
            out.append(
                f"prefixes: blocks of {self.block_tokens} tokens; {was:.1%} of the prompt tokens were in prefixes seen "
                f"before, {now:.1%} are"
            )
        if self.same_time:
            out.append(
                f"{self.same_time} of the window's requests have the time of the one before; they are spread over up "
                f"to {self.spread_s:.3g} s"
                + ("" if self.spread_s else ": sent at once, unless spread_s says otherwise")
            )
        for reason, n in self.unusable.items():
            out.append(f"not sent: {n} of the file's {self.rows} rows: {reason}")
        return out


@dataclass(frozen=True)
class Replayed:
    requests: list[Planned]
    scaling: Scaling


def scale(recorded: Recorded, replay: Replay, length_s: float) -> Replayed:
    """The part of a trace that a stage of ``length_s`` sends.

    Raises:
        ValueError: the trace ends before the stage does, holds nothing there, contradicts itself, or the lengths
            cannot be scaled so far.
    """
    after = [r for r in recorded.rows if r.at_s >= replay.from_s]
    to_s = _end(after, replay, length_s)
    window = [r for r in after if r.at_s < to_s]
    if not window:
        raise ValueError(f"the trace has no request from {replay.from_s:g} s to {to_s:.1f} s; give another from_s")
    rate_factor = (to_s - replay.from_s) / length_s
    length_factor, output_factor, block = _factors(window, replay)
    requests, cut_prompts, cut_outputs, sent = list[Planned](), 0, 0, list[Row]()
    for row, spread_s in zip(window, _spreads(window, replay.spread_s or 0.0, to_s), strict=True):
        prompt, output = _times(row.prompt_tokens, length_factor), _times(row.output_tokens, output_factor)
        if replay.longer == "drop" and prompt + output > replay.room_tokens:
            continue
        kept_output = output if prompt + output <= replay.room_tokens else min(output, replay.room_tokens // 2)
        kept_prompt = min(prompt, replay.room_tokens - kept_output)
        cut_outputs += kept_output < output
        cut_prompts += kept_prompt < prompt
        blocks = row.blocks[: math.ceil(kept_prompt / block)] if block else ()
        at_s = (row.at_s - replay.from_s) / rate_factor
        requests.append(Planned(at_s, spread_s / rate_factor, kept_prompt, kept_output, blocks))
        sent.append(row)
    if not requests:
        raise ValueError(f"all {len(window)} requests are longer than {replay.room_tokens} tokens: lower length_factor")
    return Replayed(
        requests,
        Scaling(
            form=recorded.form,
            sha256=replay.sha256,
            rows=len(recorded.rows) + sum(recorded.unusable.values()),
            unusable=recorded.unusable,
            from_s=replay.from_s,
            to_s=to_s,
            rate_factor=rate_factor,
            recorded_per_s=len(window) / (to_s - replay.from_s),
            replayed_per_s=len(requests) / length_s,
            same_time=sum(a.at_s == b.at_s for a, b in pairwise(window)),
            spread_s=max(r.spread_s for r in requests),
            requests=len(requests),
            length_factor=length_factor,
            output_factor=output_factor,
            block_tokens=block,
            cut_prompts=cut_prompts,
            cut_outputs=cut_outputs,
            dropped=len(window) - len(requests),
            prompt_tokens=_change([r.prompt_tokens for r in window], [r.prompt_tokens for r in requests]),
            output_tokens=_change([r.output_tokens for r in window], [r.output_tokens for r in requests]),
            shared_share=(
                (shared_share(window, replay.block_tokens), shared_share(requests, block)) if block else None
            ),
        ),
    )


def shared_share(requests: Iterable[Row | Planned], block_tokens: int) -> float:
    """Share of the prompt tokens that begin as an earlier prompt did: the hit rate of a prefix cache that forgets
    nothing and is not held to whole blocks."""
    seen, shared, total = dict[int, int](), 0, 0  # of each block: its tokens, as far as a prompt has had them
    for r in requests:
        alike = True
        for i, block in enumerate(r.blocks):
            mine, before = min(r.prompt_tokens - i * block_tokens, block_tokens), seen.get(block, 0)
            shared += min(mine, before) if alike else 0
            alike = alike and before == block_tokens
            seen[block] = max(mine, before)
        total += r.prompt_tokens
    return shared / total


def _end(after: Sequence[Row], replay: Replay, length_s: float) -> float:
    """Where the window ends, in seconds of the trace, of which ``after`` is what begins at ``from_s``."""
    length = (after[-1].at_s - replay.from_s) if after else 0.0
    if len(after) < 2 or length <= 0:
        raise ValueError(f"the trace has {len(after)} requests from {replay.from_s:g} s on; expected two or more")
    moments = len({r.at_s for r in after})
    most_s = replay.from_s + length * moments / max(moments - 1, 1)  # the last moment has a gap after it, too
    if replay.rate_per_s is None:
        to_s = replay.from_s + length_s * (replay.rate_factor or 1.0)
        if to_s <= most_s:
            return to_s
        needed = f"its seconds until {to_s:.0f}"
    else:
        count = max(round(replay.rate_per_s * length_s), 1)
        if count <= len(after):
            return after[count].at_s if count < len(after) else most_s
        needed = f"{count} requests"
    raise ValueError(
        f"the trace ends at {after[-1].at_s:.0f} s and has {len(after)} requests from {replay.from_s:g} s on; a stage "
        f"of {length_s:g} s needs {needed}: lower from_s, the rate or the stage's seconds"
    )


def _factors(window: Sequence[Row], replay: Replay) -> tuple[float, float, int | None]:
    """(length factor, output factor, tokens of a scaled block or None)."""
    length = replay.length_factor
    if length is None:
        length = _fitting(window, replay)
    if not any(r.blocks for r in window):
        return length, replay.output_factor or length, None
    for r in window:
        if len(r.blocks) != math.ceil(r.prompt_tokens / replay.block_tokens):
            raise ValueError(
                f"the request at {r.at_s:.3f} s of the trace has {len(r.blocks)} block hashes for {r.prompt_tokens} "
                f"tokens; expected {math.ceil(r.prompt_tokens / replay.block_tokens)} with block_tokens "
                f"{replay.block_tokens}"
            )
    # A block is a whole number of words, so that what is shared stays whole blocks: the factor follows it.
    block = max(1, round(replay.block_tokens * length))
    return block / replay.block_tokens, replay.output_factor or length, block


def _fitting(window: Sequence[Row], replay: Replay) -> float:
    """The largest factor, up to 1, with which ``fit_share`` of the requests fit the room."""
    if replay.output_factor is None:
        most = [replay.room_tokens / (r.prompt_tokens + r.output_tokens) for r in window]
    else:
        most = [(replay.room_tokens - r.output_tokens * replay.output_factor) / r.prompt_tokens for r in window]
    found = nearest_rank(sorted(most, reverse=True), replay.fit_share or 1.0)
    if found <= 0:
        raise ValueError(
            f"with output_factor {replay.output_factor} the outputs alone take the {replay.room_tokens} tokens of too "
            f"many requests for a fit_share of {replay.fit_share}: lower output_factor or fit_share"
        )
    return min(found, 1.0)


def _times(tokens: int, factor: float) -> int:
    return max(1, round(tokens * factor))


def _spreads(window: Sequence[Row], most_s: float, end_s: float) -> list[float]:
    """How much later each may be: up to ``most_s``, never past the next recorded time."""
    following, out = end_s, list[float]()
    for i in range(len(window) - 1, -1, -1):
        if i + 1 < len(window) and window[i + 1].at_s > window[i].at_s:
            following = window[i + 1].at_s
        out.append(min(most_s, following - window[i].at_s))
    return out[::-1]


def _change(recorded: Sequence[int], replayed: Sequence[int]) -> Change:
    return Change(recorded=quantiles(recorded), replayed=quantiles(replayed))


def quantiles(values: Sequence[int]) -> dict[str, int]:
    """Of a known population, not of a sample: its own P50, P95, P99 and maximum."""
    ranked = sorted(values)
    return {name: int(nearest_rank(ranked, q)) for name, q in QUANTILES.items()}
