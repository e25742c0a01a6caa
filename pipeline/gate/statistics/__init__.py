"""Statistics of the gate, one idea a file. Every bound is one-sided at the stated confidence unless a name says other.

- ``shares``: exact bounds on a share; a limit on it judged
- ``tails``: limits on a quantile, by early stopping on the effective sample
- ``effective``: what correlated samples are worth
- ``looks``: a fixed number of looks, alpha spending
- ``rounds``, ``compare``: two builds in interleaved rounds
- ``paired``, ``clusters``: two builds on the same items; items that share sources; McNemar; flips
- ``divergence``, ``lengths``: distributions over choices; lengths of answers
- ``several``: many tests at once
- ``planning``: what a sample of a size can tell, before it is measured
- ``effects``: sizes of differences, for display

The interval for a quantile itself, whatever the distribution, is `pipeline.load.intervals`, which also has to show one.
`python -m tests.pipeline.gate.coverage` simulates what each covers.
"""
