"""What a check tells GitHub beside its exit code, where a workflow runs it; elsewhere nothing."""

from __future__ import annotations

import os
from pathlib import Path

LEVELS = {"hold": "error", "undecided": "warning"}


def tell(title: str, word: str, which: str, text: str) -> None:
    """The summary of the job, and an annotation where the verdict is not ship.

    Args:
        which: the parts that the verdict is due to, on one line.
        text: Markdown, for the summary.
    """
    if path := os.environ.get("GITHUB_STEP_SUMMARY"):
        with Path(path).open("a", encoding="utf-8") as f:
            f.write(text + "\n")
    if "GITHUB_ACTIONS" in os.environ and word in LEVELS:
        print(f"::{LEVELS[word]} title={title}::{which}: see the summary of this run", flush=True)
