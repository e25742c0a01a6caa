"""The gate: records of a run and a policy in, a verdict with its evidence out."""
