"""What a load stage did over time: trend, steps, periodic spikes, stalls, growth; and whether answers were cut short.

Every detector takes plain arrays, returns what it saw with its size, and says how small a change it would have seen,
so that "stable" is a statement with a figure in it.
"""
