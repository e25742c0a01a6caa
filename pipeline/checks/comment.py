"""The comment on a pull request: one, brought up to date in place, below the size that GitHub takes.

    python -m pipeline.checks.comment --repository OWNER/NAME --head OWNER:BRANCH --sha SHA --run ID

It runs in a job of its own with a token that may write comments, after the check, on the default branch's code. What
it posts was written by code of the pull request, so it is taken as text from a stranger: cut, and without tags or
mentions. Which pull request it belongs to comes from the event, never from that text. Only Python's own library and
GitHub's `gh` are needed.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

LIMIT = 65_536  # characters; GitHub answers 422 beyond
MARK = "<!-- seatrial -->"
ARTIFACT, FILE = "comment", "comment.md"
Call = Callable[..., Any]


def body_of(text: str, link: str, limit: int = LIMIT) -> str:
    """The comment's whole text: the mark by which it is found again, the text, the link to the run.

    Cut at a line's end where it is too long, with a word on that; at most ``limit`` UTF-16 units, which are never fewer
    than characters.
    """
    text = _as_text(text)
    foot = f"\n\n[The run, with the scorecard]({link})\n"
    if _size(MARK + "\n" + text + foot) <= limit:
        return f"{MARK}\n{text}{foot}"
    foot = f"\n\n*Cut here: the whole of it is in the run.*{foot}"
    room = limit - _size(MARK + "\n" + foot)
    kept: list[str] = []
    for line in text.split("\n"):
        room -= _size(line) + 1
        if room < 0:
            break
        kept.append(line)
    if sum(line.startswith("```") for line in kept) % 2:
        while kept and not kept[-1].startswith("```"):
            kept.pop()
        kept = kept[:-1]
    return f"{MARK}\n" + "\n".join(kept) + foot


def _size(text: str) -> int:
    return len(text.encode("utf-16-le")) // 2


def _as_text(text: str) -> str:
    """No tag, no mention, no image of elsewhere: only Markdown that says something."""
    text = text.replace("\r\n", "\n").replace("\0", "").strip()
    text = text.replace("<", "&lt;")
    text = re.sub(r"!+\[", "[", text)
    return re.sub(r"@(?=[A-Za-z0-9])", "@\u200b", text)


def pull_request_of(call: Call, repository: str, head: str, sha: str) -> int | None:
    """Number of the open pull request from ``head`` (OWNER:BRANCH) whose last commit is ``sha``; None if there is none,
    because it was closed or pushed to since.
    """
    found = call("GET", f"repos/{repository}/pulls?state=open&head={quote(head, safe=':')}&per_page=100")
    return next((int(p["number"]) for p in found if p["head"]["sha"] == sha), None)


def upsert(call: Call, repository: str, number: int, body: str) -> str:
    """Replaces our comment or adds it; what of the two it did. Comments of others with the same mark are left alone."""
    page = 1
    while True:
        found = call("GET", f"repos/{repository}/issues/{number}/comments?per_page=100&page={page}")
        ours = next((c for c in found if _is_ours(c)), None)
        if ours is not None:
            call("PATCH", f"repos/{repository}/issues/comments/{ours['id']}", {"body": body})
            return "updated"
        if len(found) < 100:
            break
        page += 1
    call("POST", f"repos/{repository}/issues/{number}/comments", {"body": body})
    return "added"


def _is_ours(comment: dict[str, Any]) -> bool:
    """Of an account that is gone ``user`` is null; of a comment without text ``body`` is."""
    return (comment.get("body") or "").startswith(MARK) and (comment.get("user") or {}).get("type") == "Bot"


def gh(method: str, path: str, value: Any = None) -> Any:
    """GitHub's API through its own client."""
    command = ["gh", "api", "--method", method, path, *([] if value is None else ["--input", "-"])]
    sent = None if value is None else json.dumps(value)
    done = subprocess.run(command, capture_output=True, text=True, input=sent)
    if done.returncode:
        raise SystemExit(f"gh api {method} {path.partition('?')[0]}: {done.stderr.strip()}")
    return json.loads(done.stdout or "null")


def _download(repository: str, run: str) -> str | None:
    """The text that the check left; None where the run has none, because it ended before."""
    with tempfile.TemporaryDirectory() as folder:
        command = ["gh", "run", "download", run, "--repo", repository, "--name", ARTIFACT, "--dir", folder]
        done = subprocess.run(command, capture_output=True, text=True)
        path = Path(folder) / FILE
        if done.returncode or not path.is_file() or path.is_symlink():
            print(f"no comment in run {run}: {done.stderr.strip()}", file=sys.stderr)
            return None
        with path.open("rb") as f:
            return f.read(8 * LIMIT).decode("utf-8", errors="replace")


def main() -> None:
    parser = argparse.ArgumentParser(description="Brings the comment on a pull request up to date.")
    parser.add_argument("--repository", required=True)
    parser.add_argument("--head", required=True, help="OWNER:BRANCH of the run")
    parser.add_argument("--sha", required=True)
    parser.add_argument("--run", required=True, help="whose artifact `comment` is posted")
    parser.add_argument("--dry-run", type=Path, metavar="FILE", help="print what would be posted of this file, and end")
    given = parser.parse_args()
    link = f"https://github.com/{given.repository}/actions/runs/{given.run}"
    if given.dry_run is not None:
        print(body_of(given.dry_run.read_text(encoding="utf-8"), link), end="")
        return
    text = _download(given.repository, given.run)
    number = None if text is None else pull_request_of(gh, given.repository, given.head, given.sha)
    if text is None or number is None:
        print("nothing to say: no text, or no open pull request at that commit", file=sys.stderr)
        return
    print(f"#{number}: {upsert(gh, given.repository, number, body_of(text, link))}")


if __name__ == "__main__":
    main()
