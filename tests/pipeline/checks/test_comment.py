"""The comment: one, found again, below the limit, and harmless whatever the text says."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pipeline.checks.comment import LIMIT, MARK, body_of, pull_request_of, upsert

ROOT = Path(__file__).resolve().parents[3]
LINK = "https://github.com/o/r/actions/runs/1"


class GitHub:
    """Comments and pull requests as the API returns them, a page at a time."""

    def __init__(self, comments: list[dict[str, Any]], pulls: list[dict[str, Any]] | None = None) -> None:
        self.comments, self.pulls, self.asked = comments, pulls or [], list[str]()

    def __call__(self, method: str, path: str, value: Any = None) -> Any:
        self.asked.append(f"{method} {path}")
        if method == "GET" and "/pulls?" in path:
            return self.pulls
        if method == "GET":
            page = int(path.partition("&page=")[2])
            return self.comments[100 * (page - 1) : 100 * page]
        if method == "PATCH":
            next(c for c in self.comments if str(c["id"]) == path.rpartition("/")[2])["body"] = value["body"]
        else:
            self.comments.append(_comment(len(self.comments), value["body"]))
        return None


def _comment(number: int, body: str, kind: str = "Bot") -> dict[str, Any]:
    return {"id": number, "body": body, "user": {"type": kind}}


def test_the_second_comment_replaces_the_first() -> None:
    github = GitHub([_comment(0, "hello", "User")])
    assert upsert(github, "o/r", 7, body_of("one", LINK)) == "added"
    assert upsert(github, "o/r", 7, body_of("two", LINK)) == "updated"
    assert [c["body"].split("\n")[1:2] for c in github.comments] == [[], ["two"]]


def test_ours_is_found_on_a_later_page_and_that_of_a_stranger_is_left_alone() -> None:
    stranger = _comment(0, f"{MARK}\nnot yours", "User")
    others = [_comment(n, "x") for n in range(1, 205)]
    github = GitHub([stranger, *others, _comment(205, f"{MARK}\nold")])
    assert upsert(github, "o/r", 7, body_of("new", LINK)) == "updated"
    assert github.comments[0]["body"] == f"{MARK}\nnot yours"
    assert github.comments[205]["body"].startswith(f"{MARK}\nnew")
    assert len(github.comments) == 206


def test_comments_of_nobody_and_of_nothing_are_passed_over() -> None:
    gone, empty = _comment(0, f"{MARK}\nof an account that is gone"), _comment(1, "")
    gone["user"] = empty["body"] = None
    github = GitHub([gone, empty])
    assert upsert(github, "o/r", 7, body_of("one", LINK)) == "added"
    assert upsert(github, "o/r", 7, body_of("two", LINK)) == "updated"
    assert github.comments[0] == gone
    assert github.comments[2]["body"].startswith(f"{MARK}\ntwo")


@pytest.mark.parametrize("line", ["word " * 10, "🟢" * 40, "é" * 70])
@pytest.mark.parametrize("count", [1, 900, 5000])
def test_a_comment_is_never_longer_than_github_takes(line: str, count: int) -> None:
    body = body_of("\n".join([line] * count), LINK)
    assert len(body.encode("utf-16-le")) // 2 <= LIMIT
    assert body.startswith(MARK)
    assert LINK in body
    whole = body.count(line.strip()) >= count
    assert whole == ("Cut here" not in body)
    assert whole or len(body) > LIMIT // 2 - 200


def test_a_cut_leaves_no_block_open() -> None:
    body = body_of("intro\n```\n" + "x" * 60 + ("\n" + "x" * 60) * 2000 + "\n```\n", LINK)
    assert body.count("```") % 2 == 0
    assert "Cut here" in body
    assert "intro" in body


def test_a_line_that_is_too_long_by_itself_is_left_out() -> None:
    body = body_of("x" * (2 * LIMIT), LINK)
    assert len(body) < 300
    assert "Cut here" in body


def test_a_strangers_text_mentions_nobody_and_holds_no_tags() -> None:
    images = "![spy](https://example.org/x.png) !![spy](https://example.org/y.png)"
    body = body_of(f"@everyone <script>x</script> {MARK} {images}\r\n\0a < b", LINK)
    assert "@everyone" not in body
    assert body.count("<!--") == 1
    assert "<script" not in body
    assert "![" not in body
    assert "\0" not in body


def test_the_pull_request_is_that_of_the_event_at_that_commit() -> None:
    pulls = [{"number": 4, "head": {"sha": "old"}}, {"number": 5, "head": {"sha": "new"}}]
    github = GitHub([], pulls)
    assert pull_request_of(github, "o/r", "someone:b&state=closed#", "new") == 5
    assert github.asked == ["GET repos/o/r/pulls?state=open&head=someone:b%26state%3Dclosed%23&per_page=100"]
    assert pull_request_of(github, "o/r", "someone:b", "newer") is None


def test_it_runs_on_pythons_own_library(tmp_path: Path) -> None:
    text = tmp_path / "comment.md"
    text.write_text("## hello")
    options = ["--repository", "o/r", "--head", "a:b", "--sha", "s", "--run", "1", "--dry-run", str(text)]
    command = [sys.executable, "-S", "-m", "pipeline.checks.comment", *options]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout == body_of("## hello", LINK)
