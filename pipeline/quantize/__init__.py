"""quantize: ``artifacts/base`` -> ``artifacts/TIER`` by the recipe that params.yaml names for the tier.

    recipes/      one file a recipe; ``registry.py`` is the table of them
    decoder.py    the layers of every family, for the recipes that look at activations
    formats.py    numbers <-> stored tensors, and the readable twin :func:`dequantise`
    calibration/  text that data-aware recipes measure activations on, written for this project

Embeddings, head and norms stay bf16; the linears of the decoder layers are what a recipe changes. Weights stream
tensor by tensor (layer by layer where a recipe needs activations), so memory does not grow with depth.
"""
