from __future__ import annotations

from typing import Any

import msgpack
import pytest

from engine.protocol import AddRequest, Output, decode, encode, length_of, read_message
from engine.request import Request, RequestError, SamplingParams, TokenLogprob


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"max_tokens": -1}, "max_tokens is -1, expected 0 or more"),
        ({"temperature": -0.1}, "temperature is -0.1"),
        ({"top_k": -2}, "top_k is -2"),
        ({"top_p": 0.0}, "top_p is 0.0, expected above 0"),
        ({"repetition_penalty": 1e-300}, "repetition_penalty is 1e-300, expected 0.01 to 100"),  # a logit overflows
        ({"repetition_penalty": 1e300}, r"repetition_penalty is 1e\+300"),
        ({"min_tokens": 9}, "min_tokens is 9, expected 0 to 4"),
    ],
)
def test_parameters_out_of_range(params: dict[str, Any], message: str) -> None:
    with pytest.raises(RequestError, match=message):
        SamplingParams(**{"max_tokens": 4, **params})


def test_an_empty_prompt() -> None:
    with pytest.raises(RequestError, match="no token"):
        Request("a", [], SamplingParams(1))


def test_parameters_survive_the_wire() -> None:
    params = SamplingParams(5, temperature=0.5, logit_bias={3: -1.5}, stop_token_ids=(7, 8), seed=2**62, logprobs=0)
    fields = msgpack.unpackb(msgpack.packb(params.to_wire()), strict_map_key=False)
    assert SamplingParams.from_wire(fields) == params


def test_counters() -> None:
    request = Request("a", [1, 2, 3], SamplingParams(4, prompt_logprobs=0))
    assert (request.remaining_tokens, request.max_total_tokens, request.reusable_prefix_tokens) == (3, 7, 0)
    request.prompt_logprobs = [TokenLogprob(-1.0, [], []), TokenLogprob(-2.0, [], [])]
    assert not request.wants_prompt_logprobs
    assert request.reusable_prefix_tokens == 2
    request.tokens += [9, 9]
    request.num_computed_tokens = 4
    assert (request.num_output_tokens, request.remaining_tokens) == (2, 1)


def test_messages_survive_the_pipe(tmp_path: Any) -> None:
    output = Output("a", 3, TokenLogprob(-0.5, [1], [-0.1]), prompt_logprobs=[TokenLogprob(-1.0, [], [])])
    add = AddRequest(["a", "b"], [1, 2], {"logit_bias": {5: 1.0}})
    message = encode({"type": "step", "outputs": [output], "requests": [add]})
    assert length_of(message[:4]) == len(message) - 4
    path = tmp_path / "pipe"
    path.write_bytes(message + message[:-1])
    with path.open("rb") as pipe:
        found = read_message(pipe)
        assert found is not None
        assert Output.from_wire(found["outputs"][0]) == output
        assert AddRequest(*found["requests"][0]) == add
        assert read_message(pipe) is None  # cut off in the middle
        assert read_message(pipe) is None
    assert decode(message[4:])["type"] == "step"
