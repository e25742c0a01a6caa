"""What has been released: small reviewed JSON records, tags and model cards; the baselines of the gate.

record       what a release is, which one is in service, and the proposal that a verdict of ship allows
repository   who, commits of single files, tags in GTO's convention and their signatures: all that git does
flow         propose, promote, roll back: files, one commit, then the tags
interrupted  what was killed before its commit: no release yet, and how to finish it or take it back
card         the model card
compare      two releases side by side
show         whether a release still is what went out
commands     `seatrial release`
"""
