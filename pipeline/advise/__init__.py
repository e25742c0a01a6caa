"""advise: which tier, and when not to quantise. Every sentence carries the figures that it rests on and their file.

facts.py   what has been measured: artifacts, results of the evaluation, records of fidelity
judge.py   facts and a load -> sentences; arithmetic only
"""
