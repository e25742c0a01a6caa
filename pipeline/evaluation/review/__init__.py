"""Answers that people judge: drawn and blinded, rated on a rubric outside, read back with agreement and intervals."""
