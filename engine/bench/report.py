"""What both benchmarks end with: tables on the terminal, a page, a JSON file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table as RichTable

from engine.bench.files import write_json, write_text
from engine.bench.show import Table

RESULTS, PAGE = "results.json", "report.html"


def show(tables: list[Table], findings: list[str], console: Console | None = None) -> None:
    """On standard output: as wide as the terminal, never cut where it is none."""
    out = console or Console()
    if not out.is_terminal:
        out.width = 200
    for table in tables:
        drawn = RichTable(title=table.title, title_justify="left", header_style="bold")
        for i, name in enumerate(table.head):
            drawn.add_column(name, justify="left" if i == 0 else "right", overflow="fold")
        for row in table.rows:
            drawn.add_row(*row)
        out.print(drawn)
        for note in table.notes:
            out.print(f"  – {note}", highlight=False, markup=False)
    for finding in findings:
        out.print(finding, highlight=False, markup=False)


def write(out: Path, page: str, results: dict[str, Any]) -> None:
    write_json(out / RESULTS, results)
    write_text(out / PAGE, page)
    print(f"{out / PAGE} and {out / RESULTS} written", flush=True)
