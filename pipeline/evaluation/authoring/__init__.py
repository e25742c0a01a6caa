"""How the evalset ``core`` was written; ``python -m pipeline.evaluation.authoring --help`` writes it again, byte for byte.

A scenario is a module here with hand-written material in ``banks/``; a seed decides which entries are drawn, how slots are filled
and in which order options stand. Pinned items are written out and do not depend on the seed.

Difficulty. The set should move when a 135M model gets worse, so most scenarios should lie between a fifth and six sevenths of
right answers for the reference model: nothing can be lost where all is wrong, and little is seen where all is right. This
was tuned on templates, levels and wording with seeds other than the shipped one, on the reference model in bf16. No item was
chosen, dropped or reworded because of how a model answered it: picking the items that the reference gets right would make
every other build look worse by regression to the mean.

Clusters. ``source`` is the template family. Items of a family are correlated, and the gate's statistics count families.
"""

SEED = 20261129
WEEK = "2026-W48"
