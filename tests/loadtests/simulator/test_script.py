"""What is put on the wire, read back by a parser that is not the client's."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from loadtests.simulator.scenario import Scenario
from loadtests.simulator.script import Script, answer_to

BODY = {"messages": [{"role": "user", "content": "one two three"}], "max_tokens": 10, "stream": True}


def written(
    scenario: dict[str, Any], number: int = 1, options: dict[str, bool] | None = None, **body: Any
) -> tuple[list[Any], list[int]]:
    """(chunks, tokens of each write) of one answer."""
    s = Scenario.model_validate(scenario)
    asked = {**BODY, "stream_options": options or {"include_usage": True}, **body}
    active = [f for f in s.faults if (w := getattr(f, "when", None)) and w.selects(number, 1, 0.0)]
    script = Script(s, answer_to(s, asked, number, active, 0))
    writes = list(script.writes())
    text = (script.role() + b"".join(w.data for w in writes)).decode()
    events = [e for e in re.split(r"\r\n\r\n|\n\n|\r\r", text) if e and not e.startswith(":")]
    data = ["".join(re.sub("^data: ?", "", line) for line in re.split(r"\r\n|\r|\n", e)) for e in events]
    return [d if d == "[DONE]" else json.loads(d) for d in data], [w.tokens for w in writes]


@pytest.mark.parametrize(
    "form",
    [
        {},
        {"role": "own_chunk"},
        {"role": "none", "newline": "crlf"},
        {"newline": "cr", "comment_every": 2},
        {"split_data": True, "unicode": True},
        {"tokens_per_chunk": 3, "eos": True},
        {"silent_every": 4},
    ],
)
def test_tokens_and_usage_agree(form: dict[str, Any]) -> None:
    chunks, tokens = written({"form": form})
    assert sum(tokens) == 10
    assert chunks[-1] == "[DONE]"
    assert chunks[-2]["choices"] == []
    assert (chunks[-2]["usage"]["completion_tokens"], chunks[-2]["usage"]["prompt_tokens"]) == (10, 3)
    assert [c["choices"][0]["finish_reason"] for c in chunks[:-2]] == [None] * (len(chunks) - 3) + ["length"]
    roles = ["role" in c["choices"][0]["delta"] for c in chunks[:-2]]
    assert roles == [form.get("role") != "none"] + [False] * (len(roles) - 1)


def test_running_usage_counts_up() -> None:
    asked = {"include_usage": True, "continuous_usage_stats": True}
    chunks, _ = written({"form": {"tokens_per_chunk": 4}}, options=asked)
    assert [c["usage"]["completion_tokens"] for c in chunks[:-1]] == [4, 8, 10, 10, 10]


def test_the_same_prompt_gives_the_same_text() -> None:
    def text(number: int, prompt: str) -> str:
        chunks, _ = written({}, number, messages=[{"role": "user", "content": prompt}])
        return "".join(c["choices"][0]["delta"].get("content", "") for c in chunks[:-2])

    assert text(1, "one") == text(7, "one")
    assert len({text(1, p) for p in ("one", "two", "three", "four", "five")}) > 1


def test_faults_act_on_the_requests_they_select() -> None:
    scenario = {"faults": [{"kind": "truncate", "to_tokens": 4, "when": {"every": 2}}]}
    assert [sum(written(scenario, n)[1]) for n in (1, 2, 3)] == [4, 10, 4]
    assert written(scenario, 1)[0][-3]["choices"][0]["finish_reason"] == "stop"


@pytest.mark.parametrize(("what", "last"), [("done", "usage"), ("usage", "[DONE]"), ("finish", "[DONE]")])
def test_omissions(what: str, last: str) -> None:
    chunks, _ = written({"faults": [{"kind": "omit", "what": what}]})
    assert last in chunks[-1]
    assert any("usage" in c for c in chunks if c != "[DONE]") == (what != "usage")
    assert any(c["choices"] and c["choices"][0]["finish_reason"] for c in chunks if c != "[DONE]") == (what != "finish")


def test_a_break_ends_the_writes() -> None:
    chunks, tokens = written({"faults": [{"kind": "break", "how": "error_event", "after_tokens": 2}]})
    assert sum(tokens) == 2
    assert "broken" in chunks[-1]["error"]["message"]
    assert written({"faults": [{"kind": "break", "how": "reset", "after_tokens": 2}]})[1] == [1, 1]


def test_natural_length_is_the_prompts() -> None:
    assert sum(written({"natural_tokens": 3})[1]) in (3, 4, 5)
    assert sum(written({"natural_tokens": 3}, ignore_eos=True)[1]) == 10


def test_a_finish_reason_that_is_not_the_true_one() -> None:
    lie = {"kind": "finish", "reason": "stop", "when": {"every": 2}}
    for number, reason in ((1, "stop"), (2, "length")):
        chunks, tokens = written({"faults": [lie]}, number)
        assert chunks[-3]["choices"][0]["finish_reason"] == reason
        assert sum(tokens) == chunks[-2]["usage"]["completion_tokens"] == 10
