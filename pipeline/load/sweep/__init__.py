"""The highest rate at which a server keeps its latency targets: ``seatrial load sweep``."""
