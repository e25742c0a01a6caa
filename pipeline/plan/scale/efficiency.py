"""Shares of a data sheet's figures that are reached in practice: assumed once, for every model, device and link.

None is fitted to a case of ``published``; but the memory share, and the 5 us of NVLink in ``links``, were set with
gpt-fast's rows in view, so those rows are no independent check of them. A figure that was measured is what is reached
already: its share is 1.

- memory: gpt-fast reads weights at 1,397 of an A100's 2,039 GB/s with a batch of one (its README's table, Llama-2-7B).
- compute: Pope et al., "Efficiently Scaling Transformer Inference" (MLSys 2023), report 76 % of peak in prefill at a
  large batch and 43 % at batch one; this lies between.
- link: NCCL's all-reduce of large messages has a bus bandwidth of 230 to 240 of an A100's 300 GB/s (nccl-tests).
- capacity: vLLM's default of ``gpu_memory_utilization``.
"""

from __future__ import annotations

MEMORY_SHARE = 0.7
COMPUTE_SHARE = 0.6
LINK_SHARE = 0.8
CAPACITY_SHARE = 0.9
MEASURED = 1.0
