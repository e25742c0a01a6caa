"""From the base model to the artifact of one tier."""

from __future__ import annotations

import json
import shutil
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from engine.artifact import LinearSpec, Manifest, list_files, read_manifest, write_manifest
from pipeline.files import atomic_dir
from pipeline.provenance import digest_of, engine_source_digest
from pipeline.quantize.foreign import compressed_tensors_config
from pipeline.quantize.formats import HEAD
from pipeline.quantize.head import SPEC, with_int8_head
from pipeline.quantize.keep import kept_specs
from pipeline.quantize.recipe import Job, QuantisedParams, linears_of
from pipeline.quantize.registry import parse_entry
from pipeline.quantize.threads import one_thread_each
from pipeline.stage import Stage
from pipeline.weights import write_tensors

HERE = Path(__file__).resolve().parent


def quantise(tier: str, entry: dict[str, Any], base: Path, final: Path, work: Path, s: Stage) -> Manifest:
    """Writes ``final`` and returns its manifest; resumable state is kept below ``work`` until then.

    Raises:
        SeatrialError: the entry of params.yaml or a layer does not fit the recipe; ``final`` is as it was.
        ArtifactError: ``base`` is not an artifact.
    """
    recipe, params = parse_entry(tier, entry)
    source = read_manifest(base)
    config = json.loads((base / "config.json").read_text(encoding="utf-8"))
    calibration = recipe.calibration(params)
    inputs = [source.digest, recipe.name, params.model_dump(), calibration and calibration.digest]
    mine = work / digest_of(["quantize", *inputs, engine_source_digest(HERE)])[:16]
    int8_head = isinstance(params, QuantisedParams) and params.head == "int8"
    modules = linears_of(config, str(base))
    kept = params.keep if isinstance(params, QuantisedParams) else {}
    linears = kept_specs(kept, modules, int(config["num_hidden_layers"])) + recipe.linears(params)
    head = [SPEC] if int8_head else []
    if any(fnmatchcase(HEAD, spec.pattern) for spec in linears):  # of keep, which is for the layers: the first counts
        linears = [*(head or [LinearSpec(pattern=HEAD, scheme="bf16")]), *linears]
    else:
        linears += head
    job = Job(source=base, manifest=source, config=config, params=params, work=mine, stage=s, specs=linears)
    job.check_linears()
    recipe.check(job)
    with one_thread_each(), atomic_dir(final) as into:
        for name in source.files:
            if ".safetensors" not in name and name != "config.json":
                (into / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(base / name, into / name)
        foreign = compressed_tensors_config(linears, modules)
        written = config | ({"quantization_config": foreign} if foreign else {})
        if int8_head:
            written["tie_word_embeddings"] = False
        (into / "config.json").write_text(json.dumps(written, indent=2) + "\n", encoding="utf-8")
        tensors = recipe.tensors(job)
        weight_bytes = write_tensors(into, with_int8_head(job, tensors) if int8_head else tensors)
        manifest = Manifest(
            name=tier,
            source=source.source,
            recipe=recipe.name,
            parameters=params.model_dump(),
            calibration=calibration,
            linears=linears,
            weight_bytes=weight_bytes,
            files=list_files(into),
            report=job.report,
        )
        write_manifest(into, manifest)
    shutil.rmtree(mine, ignore_errors=True)
    s.say(f"{final}: {weight_bytes / 1024**2:.0f} MiB of weights, {weight_bytes / source.weight_bytes:.2f} of the base")
    return manifest
