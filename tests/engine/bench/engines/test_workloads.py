"""The same seed gives the same work; every seed gives as much of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from engine.bench.engines.workloads import OUTPUT, PROMPT, choose, draw, read
from engine.bench.errors import BenchError


@pytest.mark.parametrize("seed", [0, 1, 20261129])
def test_sizes_hold_for_every_seed(seed: int) -> None:
    found = draw(seed, 49152)
    a, b = found["A"].jobs, found["B"].jobs
    assert [(len(j.prompt), j.max_tokens) for j in (*a, *b)] == [(128, 128), (1024, 1)]
    for name, count, prompts, outputs in (("C16", 16, 4840, 1650), ("C64", 64, 17080, 8840)):
        jobs = found[name].jobs
        assert len(jobs) == count
        assert found[name].prompt_tokens == pytest.approx(prompts, rel=0.01)
        assert found[name].output_tokens == pytest.approx(outputs, rel=0.01)
        assert all(PROMPT[0] <= len(j.prompt) <= PROMPT[1] and OUTPUT[0] <= j.max_tokens <= OUTPUT[1] for j in jobs)


def test_a_seed_is_the_work() -> None:
    once, again, other = draw(3, 1000), draw(3, 1000), draw(4, 1000)
    assert once == again
    for name, workload in once.items():
        assert workload.digest == again[name].digest != other[name].digest
        assert {t for j in workload.jobs for t in j.prompt} <= set(range(1000))
    small = draw(3, 7)["C16"]
    assert [len(j.prompt) for j in small.jobs] == [len(j.prompt) for j in once["C16"].jobs]
    assert {t for j in small.jobs for t in j.prompt} == set(range(7))


def test_a_file_brings_its_own(tmp_path: Path) -> None:
    path = tmp_path / "w.json"
    content = {"A": {"prompt": [1, 2, 3], "out": 5}, "mine": [{"id": 0, "prompt": [4], "out": 1}] * 2, "meta": {"x": 1}}
    path.write_text(json.dumps(content))
    found = read(path)
    assert list(found) == ["A", "mine"]
    assert str(found["A"]) == "A: one request, 3 tokens in, 5 out"
    assert str(found["mine"]) == "mine: 2 requests at once, 2 tokens in, 2 out"
    assert choose(found, ["mine", "A", "mine"]) == [found["mine"], found["A"]]
    with pytest.raises(BenchError, match="unknown workload 'C16'; known: A, mine"):
        choose(found, ["C16"])
    with pytest.raises(BenchError, match="no workload is chosen"):
        choose(found, [])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "is not JSON"),
        ([1], "holds no workloads"),
        ({"meta": {}}, "holds no workloads"),
        ({"A": {"prompt": [], "out": 1}}, r"workload A, request 0\.prompt"),
        ({"A": [{"prompt": [1], "out": 0}]}, r"workload A, request 0\.out"),
        ({"A": [{"prompt": [1], "out": 1}, {"prompt": ["x"], "out": 1}]}, r"workload A, request 1\.prompt\.0"),
        ({"A": [{"prompt": [-1], "out": 1}]}, r"request 0\.prompt\.0: Input should be greater than or equal to 0"),
        ({"A": []}, "workload A"),
    ],
)
def test_a_bad_file_is_named_with_the_place(content: Any, message: str, tmp_path: Path) -> None:
    path = tmp_path / "w.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    with pytest.raises(BenchError, match=message):
        read(path)


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(BenchError, match="cannot be read"):
        read(tmp_path / "nowhere.json")
