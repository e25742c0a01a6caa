"""Whether to spread a model over several devices: ``seatrial plan scale``.

model    what a token costs: bytes read, arithmetic, KV (the ledger's)
devices  what one device does a second; links: what a wire carries
collectives   time of an all-reduce, of a send
parallel      tensor x pipeline x data parallel splits, and what each device then holds (the ledger again)
predict       time to first token, inter-token latency and throughput of a split
flips         at which bandwidth, or latency, of the link another split wins
disaggregate  prefill and decode on devices of their own, and the KV that moves
answer        the one sentence; report: the page
published     predictions held against figures that others have measured
"""
