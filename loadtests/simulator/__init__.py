"""An OpenAI-compatible server that answers on a known schedule, with known faults: the truth for the load client.

    python -m loadtests.simulator --scenario FILE --port 8000 --truth truth.jsonl

It computes nothing. What it was told to do is a typed scenario (:mod:`.scenario`); what it really did, and when, is its
truth log (:mod:`.truth`), on the machine's monotonic clock, which every process on the machine shares.
"""
