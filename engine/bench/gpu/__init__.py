"""All that a GPU has to show, in minutes and one file: ``python -m engine.bench.gpu --out FILE.json [--minutes 9]``.

Needs torch, triton, transformers and safetensors, nothing else of what the project has (pydantic is used where it is
there, see standin).

__main__ -> parts     one after the other, each with its own error, the file written anew after each
            kernels   each operation's GB/s and TFLOP/s beside ceilings of the same minute; `seatrial bench kernels`
            same      greedy tokens beside the CPU's, bits of a request alone and among others
            whole     steps and throughput of the whole engine, beside transformers
            models    Llama shapes with weights drawn on the device: nothing is written to disk but a config
            clock     seconds of work on a device; ceilings
"""
