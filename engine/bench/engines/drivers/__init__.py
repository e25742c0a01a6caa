"""Our own engine and transformers as drivers; see engine.bench.engines.protocol."""
