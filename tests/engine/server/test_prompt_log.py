"""The log of what was asked: which requests are in it, how it is bounded, and that nobody waits for it."""

from __future__ import annotations

import io
import json
import logging
import shutil
import stat
import uuid
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from engine.config import EngineConfig
from engine.server import prompt_log
from engine.server.__main__ import main
from engine.server.endpoints import completion
from engine.server.logs import Clock
from engine.server.prompt_log import PromptLog, PromptLogOptions
from engine.server.records import RequestRecord
from engine.text import TextCodec
from tests.engine.server.booted import MODEL, boot, command, refused, until
from tests.tiny import write_byte_tokenizer

CLOCK = Clock(0.0, datetime(2026, 11, 30, tzinfo=UTC))


@pytest.fixture(autouse=True)
def _no_hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    """A paused machine may take longer than the few seconds that a server gives its last rows."""
    monkeypatch.setattr(prompt_log, "CLOSE_S", None)


def opened(path: Path, lost: Callable[[int], None] = lambda n: None, **options: Any) -> PromptLog:
    return PromptLog(path, PromptLogOptions(**{"share": 1.0, **options}), lost)


def answered(text: str, status: int | None = 200, refusal: str | None = None) -> RequestRecord:
    record = RequestRecord("/v1/completions", lambda _: None)
    record.received_s, record.status, record.refusal = 1.5, status, refusal
    record.asked = [{"prompt": text, "max_tokens": 16}]
    return record


def rows(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for p in sorted(folder.glob("*.jsonl")) for line in p.read_text().splitlines()]


def test_a_line_is_the_request_and_says_when_and_which(tmp_path: Path) -> None:
    made = opened(tmp_path / "new" / "log")
    record = answered("Wie spät ist es?")
    made.note(record, CLOCK)
    made.close()
    assert rows(made.path) == [
        {
            "schema_version": 1, "id": record.id, "at": "2026-11-30T00:00:01.500000Z", "endpoint": "/v1/completions",
            "prompt": "Wie spät ist es?", "max_tokens": 16,
        }
    ]  # fmt: skip
    (path,) = made.path.iterdir()
    assert (stat.S_IMODE(path.stat().st_mode), stat.S_IMODE(made.path.stat().st_mode)) == (0o600, 0o700)


def test_only_what_was_answered_is_in_it(tmp_path: Path) -> None:
    made = opened(tmp_path)
    for record in (answered("a", 400, "invalid"), answered("b", 429, "queue_full"), answered("c", None), answered("d")):
        made.note(record, CLOCK)
    made.close()
    assert [r["prompt"] for r in rows(tmp_path)] == ["d"]


def test_the_sample_depends_on_id_seed_and_share_alone(tmp_path: Path) -> None:
    ids = [uuid.UUID(int=n).hex for n in range(4000)]

    def drawn(**options: Any) -> set[str]:
        made = opened(tmp_path, **options)
        made.close()
        return {i for i in ids if made.takes(i)}

    few, many, other = drawn(share=0.1), drawn(share=0.3), drawn(share=0.1, seed=1)
    assert 320 < len(few) < 480
    assert few < many
    assert len(few & other) < 100
    assert drawn(share=1.0) == set(ids)
    assert min(few) == "00000000000000000000000000000004", "the draw of a release is that of the next"


def test_segments_are_bounded_and_the_oldest_go(tmp_path: Path) -> None:
    (tmp_path / "prompts-00006.jsonl").write_text("of an earlier run\n")
    (tmp_path / "other.jsonl").write_text("not ours" * 1000)
    made = opened(tmp_path, max_mib=8 * 1000 / 2**20)  # segments of a thousand bytes
    for n in range(60):
        made.note(answered(f"{n:03d} " + "x" * 300), CLOCK)
    made.close()
    ours = sorted(p.name for p in tmp_path.glob("prompts-*"))
    assert "prompts-00006.jsonl" not in ours
    assert sum(p.stat().st_size for p in tmp_path.glob("prompts-*")) <= 8000
    (tmp_path / "other.jsonl").unlink()
    kept = [int(r["prompt"][:3]) for r in rows(tmp_path)]
    assert kept == list(range(kept[0], 60))
    assert 10 < len(kept) < 30
    again = opened(tmp_path)
    again.note(answered("later"), CLOCK)
    again.close()
    assert sorted(p.name for p in tmp_path.iterdir())[-1] > ours[-1]


def test_a_disk_that_fails_is_counted_and_said_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    lost: list[int] = []
    made = opened(tmp_path / "gone", lost.append)
    shutil.rmtree(made.path)
    with caplog.at_level(logging.ERROR):
        for text in "ab":
            made.note(answered(text), CLOCK)
        made.close()
    assert sum(lost) == 2
    assert [r.levelname for r in caplog.records] == ["ERROR"]
    assert "a request is not in the prompt log" in caplog.text


def test_a_line_that_fits_in_part_is_taken_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lost: list[int] = []
    made = opened(tmp_path, lost.append)

    class Full:
        """A disk with room for eleven bytes."""

        def __init__(self, path: Path, *args: Any, **options: Any) -> None:
            self.file = io.FileIO(path, "a")

        def __enter__(self) -> Full:
            return self

        def __exit__(self, *_: object) -> None:
            self.file.close()

        def write(self, line: bytes) -> int:
            return int(self.file.write(line[:11]))

        def __getattr__(self, name: str) -> Any:
            return getattr(self.file, name)

    made.note(answered("whole"), CLOCK)
    made.close()
    monkeypatch.setattr(prompt_log, "open", Full, raising=False)
    with pytest.raises(OSError, match="No space left on device"):
        made._append(b"a line that is longer than that\n")
    assert [r["prompt"] for r in rows(tmp_path)] == ["whole"]


def test_nobody_waits_for_a_disk_that_does_not_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prompt_log, "MAX_WAITING", 3)
    monkeypatch.setattr(prompt_log, "CLOSE_S", 0.01)
    monkeypatch.setattr(PromptLog, "_write_all", lambda self: None)
    lost: list[int] = []
    made = opened(tmp_path, lost.append)
    for _ in range(5):
        made.note(answered("waiting"), CLOCK)
    assert sum(lost) == 2
    made.close()
    assert rows(tmp_path) == []


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--prompt-log-share", "0.5"], "--prompt-log-share without --prompt-log"),
        (["--prompt-log", "DIR", "--prompt-log-share", "0"], "--prompt-log-share is 0.0, expected more than 0"),
        (["--prompt-log", "DIR", "--prompt-log-share", "2"], "--prompt-log-share is 2.0"),
        (["--prompt-log", "DIR", "--prompt-log-max-mib", "inf"], "--prompt-log-max-mib is inf"),
    ],
)
def test_options_that_cannot_be(
    artifact: Path, tmp_path: Path, options: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    given = [o.replace("DIR", str(tmp_path / "log")) for o in options]
    assert main(["--artifact", str(artifact), "--port", "0", *given]) == 3
    assert words in capsys.readouterr().err
    assert not (tmp_path / "log").exists()


def test_a_folder_that_cannot_be(artifact: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    said = refused([*command(artifact), "--prompt-log", str(tmp_path / "file" / "log")])
    assert "cannot write prompts to" in said
    assert "choose another --prompt-log" in said


def test_no_request_carries_its_words_where_no_log_was_asked_for(tmp_path: Path) -> None:
    write_byte_tokenizer(tmp_path)
    state: Any = SimpleNamespace(
        codec=TextCodec(tmp_path), client=SimpleNamespace(about={"max_model_len": 512, "vocab_size": 300}),
        config=EngineConfig(), check_model=lambda name: None, prompt_log=None,
    )  # fmt: skip
    raw = json.dumps({"model": MODEL, "prompt": "Hm"}).encode()
    assert completion(state, raw, 0.0).generation.asked == []
    state.prompt_log = SimpleNamespace(takes=lambda id: False)
    assert completion(state, raw, 0.0).generation.asked == []
    state.prompt_log = SimpleNamespace(takes=lambda id: True)
    assert completion(state, raw, 0.0).generation.asked == [{"prompt": "Hm", "max_tokens": 16}]


def test_a_server_writes_its_sample_of_what_it_answered(artifact: Path, tmp_path: Path) -> None:
    """Every request is in the log or not as its id says; none that was refused, none of tokens."""
    folder = tmp_path / "asked"
    names: dict[str, str] = {}
    with boot(artifact, "--prompt-log", str(folder), "--prompt-log-share", "0.5", "--prompt-log-seed", "3") as server:
        for n in range(12):
            answer = server.complete([f"first {n}", f"second {n}"], max_tokens=1).json()
            names[answer["id"].removeprefix("cmpl-")] = f"first {n}"
        said = [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": [{"type": "text", "text": "Hm"}]},
        ]
        for _ in range(12):
            body = {"model": MODEL, "messages": said, "max_completion_tokens": 2, "stream": True}
            names[server.stream("/v1/chat/completions", **body)[0]["id"].removeprefix("chatcmpl-")] = "Hm"
        for _ in range(12):
            server.complete([65, 66], max_tokens=1)
        assert {server.complete("y" * 2000).status_code for _ in range(12)} == {400}
        sample = opened(tmp_path / "same", share=0.5, seed=3)
        sample.close()
        taken = {i: text for i, text in names.items() if sample.takes(i)}
        prompts = sum(text != "Hm" for text in taken.values())
        until(lambda: len(rows(folder)) >= len(taken) + prompts)
    found = rows(folder)
    assert {r["id"] for r in found} == set(taken)
    for row in found:
        if row["endpoint"] == "/v1/completions":
            assert row["prompt"].split()[1] == names[row["id"]].split()[1]
            assert row["max_tokens"] == 1
        else:
            assert row["messages"] == [said[0], {"role": "user", "content": "Hm"}]
            assert row["max_tokens"] == 2
    assert sum(r["endpoint"] == "/v1/completions" for r in found) == 2 * prompts
