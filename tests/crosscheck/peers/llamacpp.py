"""llama.cpp through the low-level API of llama-cpp-python, batching as its server does.

Each step is one ``llama_decode`` over the next token of every slot that is generating, then as much of the waiting
prompts as fits in ``n_batch``: the continuous batching of ``llama-server``, without its HTTP, JSON and detokenising.
A request past the last slot waits for one to fall free.

    python llamacpp.py MODEL.gguf --threads 2 --slots 16
    python llamacpp.py --quantise q4_0 FROM.gguf TO.gguf
"""

from __future__ import annotations

import argparse
import ctypes
from dataclasses import dataclass

import llama_cpp as api
from protocol import Emit, Refusal, Request, serve

N_BATCH, N_UBATCH = 2048, 512  # the server's defaults
FILE_TYPES = {"q4_0": 2, "q4_1": 3, "q8_0": 7, "bf16": 32}  # enum llama_ftype


@dataclass
class Slot:
    index: int  # of the request in its job
    sequence: int
    request: Request
    computed: int = 0  # tokens of the prompt
    made: int = 0
    last: int = 0  # the token made last
    row: int = -1  # of this step's batch, where its logits are; -1: none this step


class LlamaCpp:
    name = "llama.cpp"
    version = api.__version__

    def __init__(self, path: str, threads: int, slots: int, slot_tokens: int, unified: bool) -> None:
        api.llama_backend_init()
        self.model = api.llama_model_load_from_file(path.encode(), api.llama_model_default_params())
        if not self.model:
            raise SystemExit(f"llama.cpp cannot load {path}")
        params = api.llama_context_default_params()
        params.n_ctx, params.n_seq_max, params.kv_unified = slots * slot_tokens, slots, unified
        params.n_batch, params.n_ubatch = N_BATCH, N_UBATCH
        params.n_threads = params.n_threads_batch = threads
        self.context = api.llama_init_from_model(self.model, params)
        if not self.context:
            raise SystemExit(f"llama.cpp makes no context of {slots} slots of {slot_tokens} tokens")
        self.memory = api.llama_get_memory(self.context)
        self.sampler = api.llama_sampler_init_greedy()
        self.batch = api.llama_batch_init(N_BATCH, 0, 1)
        self.slots, self.slot_tokens = slots, slot_tokens
        text = ctypes.create_string_buffer(128)
        api.llama_model_desc(self.model, text, len(text))
        self.weights = text.value.decode().split()[2]  # "llama 134.52M Q4_0"
        self.about = {"slots": slots, "threads": threads, "built_for": api.llama_print_system_info().decode()}

    def run(self, requests: list[Request], emit: Emit) -> None:
        longest = max(len(request.prompt) + request.max_tokens for request in requests)
        if longest > self.slot_tokens:
            raise Refusal(f"a request of {longest} tokens in slots of {self.slot_tokens}: give --slot-tokens")
        waiting = list(reversed(list(enumerate(requests))))
        free = list(range(self.slots))
        running: list[Slot] = []
        while waiting or running:
            while waiting and free:
                index, request = waiting.pop()
                running.append(Slot(index, free.pop(0), request))
            self._fill(running)
            if code := api.llama_decode(self.context, self.batch):
                raise SystemExit(f"llama_decode answered {code}")
            for slot in running:
                if slot.row >= 0:
                    slot.last = api.llama_sampler_sample(self.sampler, self.context, slot.row)
                    slot.made += 1
                    emit(slot.index, slot.last)
            for slot in [slot for slot in running if slot.made == slot.request.max_tokens]:
                api.llama_memory_seq_rm(self.memory, slot.sequence, -1, -1)  # nothing is kept for a next round
                free.append(slot.sequence)
                running.remove(slot)

    def _fill(self, running: list[Slot]) -> None:
        self.batch.n_tokens = 0
        for slot in running:
            slot.row = -1
            if slot.made:
                slot.row = self._add(slot.last, len(slot.request.prompt) + slot.made - 1, slot.sequence, True)
        for slot in running:
            prompt = slot.request.prompt
            while slot.computed < len(prompt) and self.batch.n_tokens < N_BATCH:
                last = slot.computed == len(prompt) - 1
                row = self._add(prompt[slot.computed], slot.computed, slot.sequence, last)
                slot.computed += 1
                if last:
                    slot.row = row

    def _add(self, token: int, position: int, sequence: int, logits: bool) -> int:
        row = self.batch.n_tokens
        self.batch.token[row], self.batch.pos[row] = token, position
        self.batch.n_seq_id[row], self.batch.seq_id[row][0] = 1, sequence
        self.batch.logits[row] = logits
        self.batch.n_tokens = row + 1
        return row


def quantise(kind: str, source: str, target: str) -> None:
    """As ``llama-quantize`` does with its defaults."""
    params = api.llama_model_quantize_default_params()
    params.ftype = FILE_TYPES[kind]
    if code := api.llama_model_quantize(source.encode(), target.encode(), ctypes.byref(params)):
        raise SystemExit(f"llama_model_quantize answered {code}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", metavar="GGUF")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--slots", type=int, default=16)
    parser.add_argument("--slot-tokens", type=int, default=1280)
    parser.add_argument("--unified", action="store_true", help="one key-value buffer for all slots")
    parser.add_argument("--quantise", choices=sorted(FILE_TYPES), help="write the second file from the first, and end")
    arguments = parser.parse_args()
    if len(arguments.files) != (2 if arguments.quantise else 1):
        parser.error("expected one file to serve, or two with --quantise")
    if arguments.quantise:
        quantise(arguments.quantise, *arguments.files)
        return
    a = arguments
    serve(lambda: LlamaCpp(a.files[0], a.threads, a.slots, a.slot_tokens, a.unified))


if __name__ == "__main__":
    main()
