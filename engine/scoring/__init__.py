"""Scores of a given text, beside or instead of an output: what ``/score`` asks of the core.

prompt_score   the logits of a prompt's positions, a few rows at a time -> stored, compared, or both
references     distributions on disk, by name and tokens: written, read, kept within a limit
"""
