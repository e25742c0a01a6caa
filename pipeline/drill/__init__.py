"""Planted faults: each in its turn, and whether the stage or the gate that must catch it does, and names it."""
