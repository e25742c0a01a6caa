"""Command lines of servers that are known: how each is told what to serve, where, and over how many devices.

As of vLLM 0.10 and later, SGLang 0.5, llama.cpp's llama-server and the server of llama-cpp-python 0.3. What a kind
cannot do (tensor parallelism by name, Ray) is refused by name.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

HOST = "127.0.0.1"


@dataclass(frozen=True)
class Served:
    """What a command line is made for. ``model``: what is loaded; ``name``: what requests call it."""

    model: str
    name: str
    port: str
    tensor_parallel: int = 1
    pipeline_parallel: int = 1
    ray: bool = False


@dataclass(frozen=True)
class Preset:
    """``key_variable``: the environment variable by which the server itself takes its API key; None: only as an
    argument, which is refused, since everybody on the machine could read it.
    """

    program: tuple[str, ...]
    options: Callable[[Served], list[str]]
    health: str
    key_variable: str | None
    parallel: bool
    ray: bool

    def command(self, program: list[str] | None, served: Served) -> list[str]:
        return [*(program or self.program), *self.options(served)]

    def check(self, tensor: int, pipeline: int, ray: bool) -> None:
        """
        Raises:
            ValueError: the server cannot be spread so.
        """
        if (tensor, pipeline) != (1, 1) and not self.parallel:
            raise ValueError(
                f"{self.program[-1]} has no tensor_parallel or pipeline_parallel; say by arguments what it does instead"
            )
        if ray and not self.ray:
            raise ValueError(f"{self.program[-1]} does not run on Ray; spread it by its own arguments")


def _vllm(s: Served) -> list[str]:
    line = [s.model, "--host", HOST, "--port", s.port, "--served-model-name", s.name]
    if s.tensor_parallel > 1:
        line += ["--tensor-parallel-size", str(s.tensor_parallel)]
    if s.pipeline_parallel > 1:
        line += ["--pipeline-parallel-size", str(s.pipeline_parallel)]
    return [*line, "--distributed-executor-backend", "ray"] if s.ray else line


def _sglang(s: Served) -> list[str]:
    line = ["--model-path", s.model, "--host", HOST, "--port", s.port, "--served-model-name", s.name]
    line += ["--enable-metrics"]
    if s.tensor_parallel > 1:
        line += ["--tensor-parallel-size", str(s.tensor_parallel)]
    if s.pipeline_parallel > 1:
        line += ["--pipeline-parallel-size", str(s.pipeline_parallel)]
    return line


def _llama_server(s: Served) -> list[str]:
    return ["--model", s.model, "--host", HOST, "--port", s.port, "--alias", s.name, "--metrics"]


def _llama_cpp_python(s: Served) -> list[str]:
    line = ["--model", s.model, "--host", HOST, "--port", s.port, "--model_alias", s.name]
    return [*line, "--interrupt_requests", "False"]  # by default a new request ends the stream that is under way


PRESETS = {
    "vllm": Preset(("vllm", "serve"), _vllm, "/health", "VLLM_API_KEY", parallel=True, ray=True),
    "sglang": Preset(("python", "-m", "sglang.launch_server"), _sglang, "/health", None, parallel=True, ray=False),
    "llama-server": Preset(("llama-server",), _llama_server, "/health", "LLAMA_API_KEY", parallel=False, ray=False),
    "llama-cpp-python": Preset(
        ("python", "-m", "llama_cpp.server"), _llama_cpp_python, "/v1/models", "API_KEY", parallel=False, ray=False
    ),
}
