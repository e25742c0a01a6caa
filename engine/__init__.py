"""Paged-KV continuous-batching inference engine. Knows nothing of gates or regression sets."""
