"""The GPU backend: the Triton kernels on a CUDA device, decode steps replayed as CUDA graphs.

    runner (host)                              device
    StepInput --layout--> pinned buffer ==1 copy==> input buffer --Model.run--> hidden, logits --best, draw--> tokens
                                                         ^                                |                     | |
                                                         '------ the next step's, which need not wait ----------|-'
    Pending <======================== 1 copy, the only wait of a step ====================|====================='
    OnHost <============= a second copy, only when somebody looks at logits =============='

A decode step runs in the smallest class (requests, blocks a table) that it fits: one captured graph each, on buffers of
its own. Rows that the step does not have are padding: requests of one token whose only block is the scratch block, one
more than the pool has. Since a row's result depends on that row alone, the bits are those of the eager step.

Greedy draws are part of the graph; draws with a temperature follow it in launches of their own, which take their
numbers (engine.kernels.draws) from the same input buffer. A row whose draw hangs on the last bits of a logarithm, or of
a nucleus's mass, is left to the host, which then looks at its logits.

What is launched runs while Python goes on. A step of decodes is launched before the tokens of the one before are read
(engine.ahead): it takes them on the device, and the scheduler, which needs them to plan, plans meanwhile. A step that
holds prompts, grammars, penalties or scores is not launched ahead.
"""
