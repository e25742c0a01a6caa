"""DVC remotes: what one machine made, another takes instead of making it again, and makes only what has changed.

Each remote is a folder or a real S3-compatible server (moto, a process of its own). Which stages ran is read from what
DVC prints.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.tiny import make_tiny_artifact

ROOT = Path(__file__).resolve().parents[1]
S3 = """
import sys
from moto.server import ThreadedMotoServer
server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
server.start()
print(server.get_host_and_port()[1], flush=True)
sys.stdin.read()
"""
GRAPH = {
    "stages": {
        "left": {"cmd": "echo ${left} > left.txt", "outs": ["left.txt"]},
        "right": {"cmd": "echo ${right} > right.txt", "outs": ["right.txt"]},
        "both": {
            "cmd": "cat left.txt right.txt > both.txt",
            "deps": ["left.txt", "right.txt"],
            "outs": ["both.txt"],
        },
    }
}
SOURCES = ("engine", "loadtests", "pipeline", ".dvc", ".dvcignore", ".gitignore", "dvc.yaml", "params.yaml")
KEYS = {"AWS_ACCESS_KEY_ID": "who", "AWS_SECRET_ACCESS_KEY": "opensesame", "AWS_DEFAULT_REGION": "us-east-1"}


@pytest.fixture(scope="module")
def s3() -> Iterator[str]:
    """Address of a server with the empty bucket ``store``."""
    with subprocess.Popen(
        [sys.executable, "-c", S3], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        try:
            assert child.stdout is not None
            url = f"http://127.0.0.1:{int(child.stdout.readline())}"
            with urllib.request.urlopen(urllib.request.Request(f"{url}/store", method="PUT"), timeout=240) as made:
                assert made.status == 200
            yield url
        finally:
            child.kill()


class Machine:
    """A folder that stands for a machine: a clone, its own cache and its own settings of DVC."""

    def __init__(self, home: Path, s3: str | None = None) -> None:
        self.clone, self._s3 = home / "clone", s3
        self._env = {k: v for k, v in os.environ.items() if not k.startswith(("AWS_", "DVC_"))}
        self._env |= {f"DVC_{kind}_DIR": str(home / kind) for kind in ("SITE_CACHE", "GLOBAL_CONFIG", "SYSTEM_CONFIG")}
        self._env |= {"DVC_NO_ANALYTICS": "1", "HOME": str(home)}
        self._env |= {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
        self._env |= {
            f"GIT_{who}_{what}": "t@example.org" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")
        }
        if s3:
            self._env |= KEYS

    def run(self, *command: str) -> str:
        done = subprocess.run(command, cwd=self.clone, env=self._env, capture_output=True, text=True, timeout=500)
        assert done.returncode == 0, f"{command}:\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def python(self, *command: str) -> str:
        return self.run(sys.executable, "-m", *command)

    def git(self, *command: str) -> None:
        self.run("git", "-c", "init.defaultBranch=main", *command)

    def commit(self) -> None:
        self.git("add", "--all")
        self.git("commit", "--quiet", "-m", "x")

    def settings(self) -> str:
        return "".join(p.read_text() for p in (self.clone / ".dvc").glob("config*"))


def ran(output: str) -> set[str]:
    return set(re.findall(r"^Running stage '([^']+)'", output, re.MULTILINE))


def change(path: Path, key: str, value: object) -> None:
    raw = yaml.safe_load(path.read_text())
    raw[key] = value
    path.write_text(yaml.safe_dump(raw, sort_keys=False))


@pytest.mark.parametrize("kind", ["folder", "s3"])
def test_a_cold_clone_pulls_and_runs_only_what_changed(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    url = request.getfixturevalue("s3") if kind == "s3" else None
    one = Machine(tmp_path / "one", url)
    one.clone.mkdir(parents=True)
    (one.clone / "dvc.yaml").write_text(yaml.safe_dump(GRAPH))
    (one.clone / "params.yaml").write_text(yaml.safe_dump({"left": "l", "right": "r"}))
    (one.clone / ".dvc").mkdir()
    where = f"url = s3://store/toy\n    endpointurl = {url}" if url else f"url = {tmp_path / 'remote'}"
    (one.clone / ".dvc/config").write_text(f"[core]\n    remote = store\n['remote \"store\"']\n    {where}\n")
    (one.clone / ".dvc/.gitignore").write_text("/config.local\n/tmp\n/cache\n")
    one.git("init", "--quiet")
    assert ran(one.python("dvc", "repro")) == {"left", "right", "both"}
    one.python("dvc", "push", "--quiet", "--run-cache")
    one.commit()

    two = Machine(tmp_path / "two", url)
    two.clone.parent.mkdir()
    subprocess.run(["git", "clone", "--quiet", str(one.clone), str(two.clone)], check=True)
    assert not (two.clone / "both.txt").exists()
    two.python("dvc", "pull", "--quiet")
    assert (two.clone / "both.txt").read_text() == "l\nr\n"
    change(two.clone / "params.yaml", "right", "new")
    assert ran(two.python("dvc", "repro")) == {"right", "both"}
    assert (two.clone / "both.txt").read_text() == "l\nnew\n"
    assert not set(KEYS.values()) & set(re.split(r"\W+", two.settings()))


def test_a_cold_runner_runs_only_the_stage_that_changed(s3: str, tmp_path: Path) -> None:
    """This repository's graph on a tiny model, as ``.github/scripts/release.sh`` runs it: no dvc.lock is committed."""
    one, two = Machine(tmp_path / "one", s3), Machine(tmp_path / "two", s3)
    names = subprocess.run(["git", "ls-files", "-z", *SOURCES], cwd=ROOT, check=True, capture_output=True, text=True)
    for name in filter(None, names.stdout.split("\0")):
        (one.clone / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, one.clone / name)
    make_tiny_artifact(tmp_path / "model", intermediate_size=192)
    change(one.clone / "params.yaml", "model", {"source": f"path:{tmp_path / 'model'}"})
    one.git("init", "--quiet")
    one.python("dvc", "remote", "add", "--default", "store", "s3://store/trial")
    one.python("dvc", "remote", "modify", "store", "endpointurl", s3)
    one.commit()
    two.clone.parent.mkdir()
    subprocess.run(["git", "clone", "--quiet", str(one.clone), str(two.clone)], check=True)

    stages = {"fetch", "quantize@bf16", "plan@bf16"}
    assert ran(one.python("pipeline.trial", "--pull", "plan@bf16")) == stages  # nothing is there yet
    one.python("dvc", "push", "--quiet", "--run-cache")

    engine = yaml.safe_load((two.clone / "params.yaml").read_text())["engine"]
    change(two.clone / "params.yaml", "engine", engine | {"max_num_seqs": 3})
    assert ran(two.python("pipeline.trial", "--pull", "plan@bf16")) == {"plan@bf16"}
    weights, plans = (
        [(m.clone / name).read_bytes() for m in (one, two)]
        for name in ("artifacts/bf16/model.safetensors", "results/bf16/plan.json")
    )
    assert weights[0] == weights[1]
    assert plans[0] != plans[1]
