"""Why a run is slow or wrong: a fixed walk over what the engine itself wrote down, one cause named, with its figure.

inputs       one run, and the one that it is held against (pipeline.load.engine_log keeps the engine's logs there)
steps        what a step costs by what is in it
latency      time to first token and inter-token latency, taken apart
told         the same by a server's metrics, where it keeps no logs
throughput   occupancy, token budget, KV pool, admission
quality      tier, context, template, stop handling
causes       what may be named, and the knob to try
"""
