"""fidelity: how far a tier is from the 16-bit reference, by a measure finer than accuracy.

    texts.py      what is scored: held-out text of our own, prompts of the evalset, one long sequence
    asking.py     scores and greedy generations of a running server
    figures.py    perplexity, divergence, agreement, slope: arithmetic only
    run.py        the reference once, then every tier and KV dtype -> records
    records.py    the records, read back
    graded.py     what the evaluation says of the same builds
    table.py      the records side by side
    held_out/     text that no recipe may calibrate on, written for this project

The record, ``reports/fidelity/VARIANT.json`` (VARIANT: the tier, ``+kv-int8`` or ``+kv-int4`` behind it where the
KV cache is that):

    schema_version  1
    variant, tier, kv_dtype
    header          provenance of the variant (pipeline.provenance.Header); workload: texts, prompts and their sizes
    reference       {variant, model, quantisation, engine_derived}: what it is compared with
    weight_bytes, kv_bytes_per_token
    parts           {"held_out" | "prompts": {tokens, perplexity, reference_perplexity, kl_mean, kl_p99, kl_max,
                    top1_agreement}}; natural logarithms, KL(reference || variant) in nats a token
    long            {tokens, kl_mean, slope: {per_1000_tokens, upper, confidence, bins} | null, reason}
    greedy          {prompts, identical_share, by_prompt_tokens: [{from, to, prompts, identical,
                    first_divergence_median | null}]}: positions are output tokens, from 0

What cannot be known is null with a reason. ``kl_p99`` is the 99th percentile over tokens (nearest rank).
"""
