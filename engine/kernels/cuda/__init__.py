"""The GPU backend: the Triton kernels on a CUDA device, decode steps replayed as CUDA graphs.

    runner (host)                              device
    StepInput --layout--> pinned buffer ==1 copy==> input buffer --Model.run--> hidden, logits, (token, logit) a row
                                                                                  |            |
    Pending <======================== 1 copy, the only wait of a step ============|============'
    HostLogits <========= a second copy, only when somebody looks at logits ======'

A decode step runs in the smallest class (requests, blocks a table) that it fits: one captured graph each, on buffers of
its own. Rows that the step does not have are padding: requests of one token whose only block is the scratch block, one
more than the pool has. Since a row's result depends on that row alone, the bits are those of the eager step.

What is launched runs while Python goes on. The scheduler needs a step's tokens to plan the next one (who has ended, who
grows a block), so it overlaps with steps that draw nothing (chunks of prompts) and not with decode steps: there only
the books of the step itself do, up to the first look at a token.
"""
