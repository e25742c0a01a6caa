"""How the evalset ``core`` was written. ``python -m pipeline.evaluation.authoring`` writes it again, byte for byte.

A scenario is a module here with hand-written material in ``banks/``; a seed decides which entries are drawn, how slots
are filled and in which order options stand. Pinned items do not depend on the seed.

Difficulty. The set should move when a 135M model gets worse, so most scenarios should lie between a fifth and six
sevenths of right answers for the reference model: where all is wrong nothing can be lost, and where all is right little
is seen. This was tuned on templates, levels and the wording of questions with other seeds than the shipped one, on the
reference model in bf16; a scenario that stayed at the level of guessing was given up,
save ``help_or_refuse`` (see there). No item was chosen, dropped or
reworded for how a model answered it: picking the items that the reference gets right would make every other build look
worse by regression to the mean. Banks are shared between seeds, so what is tuned is the template, not the set of items.
Pinned items are the same for every seed and so were answered in each run of tuning; none was changed for that, but they
follow their scenario's form of question when that changes.

Places. Within a scenario the right option of choices stands in each place equally often (``balanced``).

Clusters. ``source`` is the template family, or the document. Items of a family are correlated; the gate's statistics
count families.

Origins. Everything is ``written`` or ``pinned``: there is no service yet whose requests could be taken.
"""

SEED = 20261130
WEEK = "2026-W49"
