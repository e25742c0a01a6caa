"""What a release needs of git: who, which commit, commits of single files, and tags in GTO's convention.

GTO (gto in the lock file, https://dvc.org/doc/gto) reads annotated tags: ``model@v1.2.0`` registers a version,
``model#prod#3`` puts the version at that commit into service; the number counts these events.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from pipeline.errors import SeatrialError

SEMVER = r"(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)(-[0-9A-Za-z-]+(\.[0-9A-Za-z-]+)*)?"
STAGE = "prod"
Signature = Literal["none", "good", "bad", "unknown"]


def git(*arguments: str, input: str | None = None) -> str:
    """
    Raises:
        SeatrialError: git is missing or says no, with what it says.
    """
    done = _git(*arguments, input=input)
    if done.returncode:
        said = done.stderr.strip() or done.stdout.strip() or f"exit code {done.returncode}"
        raise SeatrialError(f"git {arguments[0]}: {said}")
    return done.stdout.strip()


def _git(*arguments: str, input: str | None = None) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(["git", *arguments], capture_output=True, text=True, input=input, encoding="utf-8")
    except FileNotFoundError as e:
        raise SeatrialError("git is not installed; releases are commits and tags, so they need it") from e


def is_repository() -> bool:
    """Whether this is a work tree that has a commit."""
    return _git("rev-parse", "--verify", "--quiet", "HEAD").returncode == 0


def require_repository() -> None:
    """
    Raises:
        SeatrialError: not in a work tree, or one without a commit.
    """
    if not is_repository():
        raise SeatrialError(f"{Path.cwd()} is no git repository with a commit; releases are commits and tags in one")


def who() -> str:
    """``NAME <MAIL>`` of git's settings.

    Raises:
        SeatrialError: git does not know who it is.
    """
    found = [_git("config", key).stdout.strip() for key in ("user.name", "user.email")]
    if not all(found):
        raise SeatrialError("git does not know who you are: set user.name and user.email (git config)")
    return f"{found[0]} <{found[1]}>"


def moment_of(revision: str = "HEAD") -> str:
    """Committer's date in UTC, RFC 3339."""
    at = datetime.fromtimestamp(int(git("show", "-s", "--format=%ct", revision)), UTC)
    return at.isoformat().replace("+00:00", "Z")


def committed(path: Path, revision: str = "HEAD") -> bytes | None:
    """Content of a file in a commit; None if it is not there. ``path`` is relative to the working directory."""
    done = subprocess.run(["git", "show", f"{revision}:./{path.as_posix()}"], capture_output=True)
    return None if done.returncode else done.stdout


def committed_names(folder: Path) -> set[str]:
    """Names of the files right below ``folder`` in the last commit."""
    found = git("ls-tree", "--name-only", "-z", "HEAD", "--", f"{folder.as_posix()}/")
    return {Path(name).name for name in found.split("\0") if name}


def commit_only(paths: Sequence[Path], message: str) -> None:
    """Commits these files as they are (those that are gone as removed) and nothing else that may be staged."""
    names = [p.as_posix() for p in paths]
    git("add", "--all", "--force", "--", *names)
    git("commit", "--quiet", "--message", message, "--only", "--", *names)


def added_in(path: Path) -> str:
    """The commit that added a file.

    Raises:
        SeatrialError: no commit in reach did.
    """
    found = git("log", "--diff-filter=A", "--format=%H", "-n", "1", "--", path.as_posix())
    if not found:
        raise SeatrialError(f"no commit adds {path}; a shallow clone has few (git fetch --unshallow gets the rest)")
    return found


def version_tag(artifact: str, name: str) -> str:
    """
    Raises:
        SeatrialError: the name is no semantic version, which GTO's tags need.
    """
    if not re.fullmatch(SEMVER, name):
        raise SeatrialError(f"{name!r} cannot name a release: expected a version such as 1.4.0 or 1.4.0-rc.1")
    return f"{artifact}@v{name}"


def stage_tag(artifact: str, sequence: int) -> str:
    return f"{artifact}#{STAGE}#{sequence}"


def tag_exists(tag: str) -> bool:
    return _git("rev-parse", "--verify", "--quiet", f"refs/tags/{tag}").returncode == 0


def make_tag(tag: str, commit: str, message: str, *, sign: bool) -> None:
    """An annotated tag, signed by what git is set to use (``gpg.format`` ssh, openpgp or x509) if asked to."""
    git("tag", "--sign" if sign else "--annotate", "--file", "-", tag, commit, input=message)


def signature_of(tag: str) -> tuple[Signature, str]:
    """Whether the tag is signed, and what git says of it; ``unknown``: signed, but git knows no allowed signers."""
    text = _git("cat-file", "tag", tag).stdout
    if "-----BEGIN SSH SIGNATURE-----" not in text and "-----BEGIN PGP SIGNATURE-----" not in text:
        return "none", "not signed"
    done = _git("verify-tag", tag)
    said = " ".join(done.stderr.split())
    if done.returncode == 0:
        return "good", said
    if "allowedSignersFile" in said:
        return "unknown", "signed, but gpg.ssh.allowedSignersFile is not set: git cannot say by whom"
    return "bad", said
