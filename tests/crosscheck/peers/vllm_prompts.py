"""What vLLM's CPU build makes of prompts: the whole distribution of each next token.

python vllm_prompts.py DIR PROMPTS OUT --dtype float32

PROMPTS: JSON, lists of token ids. OUT: a list of tensors as torch saves them, one a prompt, float32 [tokens - 1,
vocab]: row i holds the log-probabilities of what follows the first i + 1 tokens.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from vllm_cpu import in_this_process, with_its_openmp


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path)
    parser.add_argument("prompts", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--dtype", default="float32", choices=["bfloat16", "float32"])
    a = parser.parse_args()
    with_its_openmp()
    in_this_process(a.threads, cache_gib=1)
    import torch
    from vllm import LLM, SamplingParams

    def in_order(token_ids: list[int], logprobs: list[float]) -> torch.Tensor:
        """[vocab]; the token of the prompt stands there twice."""
        row = torch.full((len(set(token_ids)),), float("nan"))
        row[torch.tensor(token_ids)] = torch.tensor(logprobs)
        return row

    sequences = json.loads(a.prompts.read_text(encoding="utf-8"))
    llm = LLM(
        model=str(a.directory), dtype=a.dtype, enforce_eager=True, enable_prefix_caching=False, max_model_len=512,
        max_num_seqs=1, max_logprobs=-1,
    )  # fmt: skip
    params = SamplingParams(temperature=0.0, max_tokens=1, prompt_logprobs=-1, flat_logprobs=True, detokenize=False)
    found = []
    for ids in sequences:
        (output,) = llm.generate({"prompt_token_ids": ids}, params, use_tqdm=False)
        told = output.prompt_logprobs
        rows = [slice(*ends) for ends in zip(told.start_indices[1:], told.end_indices[1:], strict=True)]  # 0: nothing
        found.append(torch.stack([in_order(told.token_ids[row], told.logprobs[row]) for row in rows]))
    torch.save(found, a.out)


if __name__ == "__main__":
    main()
