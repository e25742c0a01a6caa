"""Two builds on one machine: interleaved rounds over the same traffic, and the ratio of each percentile.

sides     what BASE and CANDIDATE mean: a revision, an artifact, a release, engine settings, a seam or a URL
trees     a revision as a source tree with an interpreter and artifacts of its own
rounds    one fresh boot, warm-up and slice of traffic, and its figures
counts    work that is counted, not timed: exact, of the same requests on both sides
decide    from the figures of all rounds to ratios with intervals, and to ship, hold or undecided
cause     of a hold: what the engines' own logs name
quality   greedy answers of both sides to the same items
report    ab.json and the Markdown table
"""
