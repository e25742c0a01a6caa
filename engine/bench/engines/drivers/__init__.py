"""Our own engine and transformers as drivers; see engine.bench.engines.protocol. steps: a profile of ours."""
