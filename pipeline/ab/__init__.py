"""Two builds on one machine: interleaved rounds over the same traffic, and the ratio of each percentile.

Both sides of a pair are booted and served in turns of about a second (``loadtests.turns``), not one after the other for
as long as a round lasts: a virtual machine's neighbours make it 10 to 25 % slower for 2 to 20 seconds at a time, of
which "steal" shows nothing, and such a spell then meets both sides alike instead of one. An idle server takes no
processor time. Where there is no room for two servers, or where traffic cannot wait for a turn, whole rounds follow
each other, and ``ab.json`` says why. A turn ends with its last answer: a clock would have to leave a gap as long as the
longest answer, or let one side compute in the other's turn.

sides     what BASE and CANDIDATE mean: a revision, an artifact, a release, engine settings, a seam or a URL
trees     a revision as a source tree with an interpreter and artifacts of its own
rounds    one fresh boot, warm-up and slice of traffic, and its figures
pairs     a round of either side over the same traffic, in turns or one after the other
room      whether the machine's memory holds both servers
counts    work that is counted, not timed: exact, of the same requests on both sides
decide    from the figures of all rounds to ratios with intervals, and to ship, hold or undecided
cause     of a hold: what the engines' own logs name
quality   greedy answers of both sides to the same items
report    ab.json and the Markdown table
"""
