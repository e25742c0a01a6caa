"""The manifest for Kubernetes: against Kubernetes' own schemas, and against what it starts."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

import loadtests
from loadtests.workload import load_profile

ROOT = Path(loadtests.__file__).parents[1]
MANIFEST = ROOT / "loadtests/kubernetes/loadtest.yaml"
OBJECTS: list[dict[str, Any]] = list(yaml.safe_load_all(MANIFEST.read_text(encoding="utf-8")))
# The oldest that a cluster is likely to run, and the newest that the schemas are of.
VERSIONS = ["1.30", kubernetes_validate.latest_version()]


def name_of(thing: dict[str, Any]) -> str:
    return f"{thing['kind']}/{thing['metadata']['name']}"


def find(name: str) -> dict[str, Any]:
    return next(thing for thing in OBJECTS if name_of(thing) == name)


def container(name: str) -> dict[str, Any]:
    found: dict[str, Any] = find(name)["spec"]["template"]["spec"]["containers"][0]
    return found


def options(name: str) -> dict[str, str]:
    return {key: value for key, _, value in (arg.partition("=") for arg in container(name)["args"])}


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("thing", OBJECTS, ids=name_of)
def test_every_object_is_of_its_schema(thing: dict[str, Any], version: str) -> None:
    kubernetes_validate.validate(thing, version, strict=True)


def test_the_lint_sees_what_is_wrong() -> None:
    for key, value in (("parallelism", "three"), ("paralellism", 3)):
        spec = {**find("Job/seatrial-worker")["spec"], key: value}
        with pytest.raises(kubernetes_validate.ValidationError, match=rf"{key}|three"):
            kubernetes_validate.validate({**find("Job/seatrial-worker"), "spec": spec}, VERSIONS[-1], strict=True)


def test_the_parts_fit_together() -> None:
    master, worker = options("Job/seatrial-master"), options("Job/seatrial-worker")
    many = find("Job/seatrial-worker")["spec"]
    assert int(master["--workers"]) == many["parallelism"] == many["completions"] > 1
    service = find("Service/seatrial-master")
    port = service["spec"]["ports"][0]
    assert worker["--master-host"] == service["metadata"]["name"]
    assert worker["--master-port"] == str(port["port"]) == str(port["targetPort"])
    assert master["--await-workers"] == f"0.0.0.0:{port['port']}"
    assert [p["containerPort"] for p in container("Job/seatrial-master")["ports"]] == [port["port"]]
    labels = [find(f"Job/seatrial-{part}")["spec"]["template"]["metadata"]["labels"] for part in ("master", "worker")]
    assert [service["spec"]["selector"].items() <= of.items() for of in labels] == [True, False]
    spread = find("Job/seatrial-worker")["spec"]["template"]["spec"]["topologySpreadConstraints"][0]
    assert spread["labelSelector"]["matchLabels"] == labels[1]
    mounts = [m["mountPath"] for m in container("Job/seatrial-master")["volumeMounts"]]
    assert any(master["--out"].startswith(f"{mount}/") for mount in mounts)


def test_the_options_are_those_of_the_commands() -> None:
    for name in ("Job/seatrial-master", "Job/seatrial-worker"):
        python, *command = container(name)["command"]
        assert python == "python"
        shown = subprocess.run(
            [sys.executable, *command, "--help"], cwd=ROOT, capture_output=True, text=True, timeout=240
        )
        assert [o for o in options(name) if o not in shown.stdout] == [], shown.stderr
    assert (ROOT / options("Job/seatrial-worker")["--locustfile"]).is_file()
    assert load_profile(options("Job/seatrial-master")["--profile"]).stages
