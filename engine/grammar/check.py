"""``python -m engine.grammar.check ARTIFACT VOCAB_SIZE``: compiles grammars for the server, to see whether they can be.

A process of its own, since compiling cannot be interrupted and some grammars take minutes or the whole memory: the
system ends this process when one grammar has taken ``CPU_S`` seconds of processor time or ``MEMORY_BYTES``, and the
server starts another. Messages as in ``engine.protocol``:

    in   {"grammar": [kind, source]}      out   {"ready": true} once, then {"error": text or null} for each
"""

from __future__ import annotations

import math
import random
import resource
import signal
import sys
import time
from pathlib import Path

from engine.grammar.compiler import GrammarCompiler, Matcher, MatchError
from engine.grammar.sources import GrammarError
from engine.protocol import encode, read_message
from engine.request import RequestError

CPU_S = 2
PROBE_TOKENS, PROBE_S = 16, 0.1  # what following it may take: many times what real grammars need
MEMORY_BYTES = 1 << 30  # beyond what the tokenizer's tables need


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # as in the core: the server decides when to end
    compiler = GrammarCompiler(Path(sys.argv[1]), int(sys.argv[2]))
    compiler.load()
    _limit_memory()
    out = sys.stdout.buffer
    out.write(encode({"ready": True}))
    out.flush()
    while (message := read_message(sys.stdin.buffer)) is not None:
        _limit_cpu()
        error = None
        try:
            kind, source = message["grammar"]
            probe(compiler.compile((kind, source)))
        except (RequestError, MatchError) as e:
            error = str(e)
        out.write(encode({"error": error}))
        out.flush()


def probe(matcher: Matcher) -> None:
    """Follows some text of the grammar, any at all.

    Raises:
        GrammarError: it would hold up the steps that all requests share.
        engine.grammar.compiler.MatchError: it cannot be followed.
    """
    chance, began_s = random.Random(0), time.process_time()
    for _ in range(PROBE_TOKENS):
        if matcher.accept(int(chance.choice(matcher.allowed()))):
            return
        if (taken_s := time.process_time() - began_s) > PROBE_S:
            found = f"following the grammar for a few tokens takes {taken_s * 1e3:.0f} ms"
            raise GrammarError(f"{found}; {PROBE_TOKENS} may take {PROBE_S * 1e3:.0f} ms; make it simpler")


def _limit_memory() -> None:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + MEMORY_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def _limit_cpu() -> None:
    """From now on: the signal that comes at the soft limit ends the process."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    resource.setrlimit(
        resource.RLIMIT_CPU, (math.ceil(usage.ru_utime + usage.ru_stime + CPU_S), resource.RLIM_INFINITY)
    )


if __name__ == "__main__":
    main()
