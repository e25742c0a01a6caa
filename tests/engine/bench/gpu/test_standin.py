"""The stand-in for pydantic, on the engine's own settings and manifests, beside pydantic itself."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from engine.artifact import read_manifest
from engine.bench.gpu import standin
from engine.config import EngineConfig
from engine.ledger import ModelShape, plan
from tests.tiny import make_tiny_artifact

ROOT = Path(__file__).resolve().parents[4]
ABSENT = {  # what a machine with torch, triton, transformers and safetensors may lack
    "altair", "datasketch", "dvc", "fastapi", "great_expectations", "httpx_sse", "llguidance", "locust", "msgpack",
    "pandas", "polars", "prometheus_client", "psutil", "pydantic", "pydantic_core", "scipy", "uvicorn", "gguf",
}  # fmt: skip
HOOK = f"""
import sys
from importlib.abc import MetaPathFinder

class Absent(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {sorted(ABSENT)!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Absent())
import importlib.util
_found = importlib.util.find_spec
importlib.util.find_spec = lambda name, package=None: None if name in {sorted(ABSENT)!r} else _found(name, package)
"""
PROBE = """
import json, sys
from pathlib import Path
from engine.bench.gpu import standin
assert standin.install()
from engine.artifact import verify
from engine.bench.gpu import demands, parts
from engine.config import EngineConfig
from engine.ledger import plan_artifact
path, out = Path(sys.argv[1]), {}
out["manifest"] = verify(path).model_dump()
config = EngineConfig(device="cuda", max_num_seqs=3)
out["config"] = config.model_dump()
out["plan"] = plan_artifact(path, config, "bfloat16", "bfloat16").model_dump()
try:
    EngineConfig(prefill_chunk_tokens=100)
except ValueError as e:
    out["refused"] = str(e)
print(json.dumps(out))
"""


def test_the_check_imports_nothing_that_a_gpu_machine_may_lack(tmp_path: Path) -> None:
    """Everything on its path, with the other packages gone; what the stand-in makes is what pydantic makes."""
    artifact = make_tiny_artifact(tmp_path / "tiny", "int4")
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"} | {"TRITON_INTERPRET": "1"}
    done = subprocess.run(
        [sys.executable, "-c", HOOK + PROBE, str(artifact)],
        cwd=ROOT, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    config = EngineConfig(backend="cuda", max_num_seqs=3)
    shape, manifest = ModelShape.of_directory(artifact), read_manifest(artifact)
    assert found["manifest"] == json.loads(manifest.model_dump_json())
    assert found["config"] == config.model_dump()
    expected = plan(
        shape, manifest.weight_bytes, config.model_copy(update={"max_model_len": 512}), "bfloat16", "bfloat16"
    )
    assert found["plan"] == expected.model_dump()
    assert found["refused"].startswith("prefill_chunk_tokens is 100, not a multiple of block_size 16")


class Inner(standin.BaseModel):
    size: int


class Outer(standin.BaseModel):
    inner: Inner
    many: list[Inner] = standin.Given([])  # type: ignore[assignment]
    maybe: Inner | None = None


def test_models_in_models() -> None:
    found = Outer.model_validate_json('{"inner": {"size": 1}, "many": [{"size": 2}], "maybe": {"size": 3}}')
    assert found == Outer(inner=Inner(size=1), many=[Inner(size=2)], maybe=Inner(size=3))
    assert json.loads(found.model_dump_json())["many"] == [{"size": 2}]
    assert found.model_copy(update={"maybe": None}).maybe is None


@pytest.mark.parametrize(
    ("text", "message"),
    [("{}", "Outer needs inner"), ('{"inner": {"size": 1}, "other": 2}', "Outer has no other"), ("[", "Expecting")],
)
def test_what_does_not_fit_is_refused(text: str, message: str) -> None:
    with pytest.raises(standin.ValidationError, match=message):
        Outer.model_validate_json(text)
