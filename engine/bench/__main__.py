"""``python -m engine.bench COMMAND``: exit code 0, or 3 with one line that says what is wrong."""

from __future__ import annotations

import importlib
import sys

from engine.artifact import ArtifactError
from engine.bench.errors import BenchError
from engine.bench.options import Parser
from engine.kernels.errors import UnavailableError

COMMANDS = {
    "engine": "engine.bench.engine_command",
    "policies": "engine.bench.policies_command",
    "fit": "engine.bench.fit_command",
    "kernels": "engine.bench.kernels_command",
    "ceilings": "engine.bench.ceilings_command",
}


def main(argv: list[str] | None = None) -> int:
    about = "Benchmarks of the engine: against other engines, and its own policies against each other."
    parser = Parser(prog="seatrial bench", description=about, allow_abbrev=False)
    commands = parser.add_subparsers(dest="command", required=True, parser_class=Parser)
    for name, module_name in COMMANDS.items():
        module = importlib.import_module(module_name)
        command = commands.add_parser(name, help=module.HELP, description=module.__doc__, allow_abbrev=False)
        module.add_options(command)
        command.set_defaults(run=module.main)
    try:
        arguments = parser.parse_args(argv)
        arguments.run(arguments)
    except (BenchError, ArtifactError, UnavailableError) as e:
        print(f"error: {e}", file=sys.stderr, flush=True)
        return 3
    except KeyboardInterrupt:
        print("interrupted; nothing was written", file=sys.stderr, flush=True)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
