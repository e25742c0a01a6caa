"""The stages of a trial: build artifacts, run evaluations and load tests, judge, report."""
