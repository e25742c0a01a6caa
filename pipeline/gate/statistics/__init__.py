"""Statistics of the gate, one idea a file. Every bound is one-sided at the stated confidence unless a name says other.

- ``shares``: exact bounds on a share; a limit on it judged
- ``tails``: limits on a quantile, MLPerf's early stopping on the effective sample
- ``effective``: what correlated samples are worth
- ``looks``: a fixed number of looks, alpha spending
- ``rounds``, ``compare``: two builds in interleaved rounds
- ``paired``: two builds on the same items
- ``several``: many tests at once
"""
