"""Hand-written material: one module a scenario, data only."""
