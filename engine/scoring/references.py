"""Reference log-probabilities on disk: every row of the distribution that one model gave one sequence of tokens.

    DIR/NAME/<sha256 of the token ids>.safetensors
        __metadata__   schema_version, and the identity of the model and of the arithmetic that made it
        tokens         int64 [n]
        logprobs       float32 [n - 1, vocab]; row i is the distribution of token i + 1, natural logarithm

One NAME holds the rows of one model. A file is written beside its place under a name that begins with a dot, locked as
long as its writer lives, and gets its own name when its last row is there: what a killed server leaves does not look
complete, and the next server on DIR removes it. Rows that a crash of the machine left unwritten are zeros, which are no
distribution: ``engine.scoring.prompt_score`` refuses them.
"""

from __future__ import annotations

import fcntl
import hashlib
import itertools
import json
import os
import re
import shutil
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.request import RequestError

SUFFIX, TEMPORARY = ".safetensors", ".tmp"
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
MAX_HEADER_BYTES = 1 << 20
Rows = NDArray[np.float32]
# What comes of reading a file that is none of ours: whatever is in it, one request is refused and the core goes on.
_UNREADABLE = (OSError, ValueError, LookupError, TypeError, AttributeError, OverflowError, RecursionError)


class StorageError(RequestError):
    """No room for reference log-probabilities: names what is needed and what is there."""


class ReferenceFileError(RuntimeError):
    """A reference file that failed while a request was using it."""


def tokens_digest(tokens: Sequence[int]) -> str:
    """sha256 over the token ids as little-endian int64."""
    return hashlib.sha256(np.asarray(tokens, "<i8").tobytes()).hexdigest()


def header_of(num_tokens: int, vocab: int, identity: dict[str, str]) -> bytes:
    """Everything before the first token id, in the safetensors format: length, JSON, spaces up to a multiple of 8."""
    rows, tokens_end = num_tokens - 1, 8 * num_tokens
    end = tokens_end + 4 * rows * vocab
    fields = {
        "__metadata__": {"schema_version": "1", **identity},
        "tokens": {"dtype": "I64", "shape": [num_tokens], "data_offsets": [0, tokens_end]},
        "logprobs": {"dtype": "F32", "shape": [rows, vocab], "data_offsets": [tokens_end, end]},
    }  # fmt: skip
    text = json.dumps(fields, sort_keys=True).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


class ReferenceWriter:
    """One file in the making. Nothing is on disk before the first write, nothing looks complete before ``finish``."""

    def __init__(self, store: ReferenceStore, path: Path, tokens: Sequence[int], vocab: int) -> None:
        self.path, self._store, self._vocab = path, store, vocab
        self._head = header_of(len(tokens), vocab, store.identity) + np.asarray(tokens, "<i8").tobytes()
        self.num_bytes = len(self._head) + 4 * vocab * (len(tokens) - 1)
        self._temporary = path.with_name(f".{path.stem}.{os.getpid()}.{next(store.counter)}{TEMPORARY}")
        self._fd: int | None = None
        self._open = True

    def write(self, first: int, rows: Rows) -> None:
        """Rows ``first ... first + len(rows) - 1``.

        Raises:
            ReferenceFileError: the disk does not take them.
        """
        try:
            if self._fd is None:
                self._create()
            self._put(rows.astype("<f4", copy=False).tobytes(), len(self._head) + 4 * self._vocab * first)
        except OSError as e:
            raise ReferenceFileError(f"{self._temporary} cannot be written: {e.strerror}") from e

    def _create(self) -> None:
        self.path.parent.mkdir(exist_ok=True)
        self._fd = os.open(self._temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644)
        fcntl.flock(self._fd, fcntl.LOCK_EX)
        os.posix_fallocate(self._fd, 0, self.num_bytes)  # a full disk is noticed here, not half way
        self._put(self._head, 0)

    def _put(self, data: bytes, at: int) -> None:
        assert self._fd is not None
        view = memoryview(data)
        while view:
            written = os.pwrite(self._fd, view, at)
            view, at = view[written:], at + written

    def finish(self) -> None:
        """All rows are written: the file gets its name.

        Raises:
            ReferenceFileError: it cannot be put in its place.
        """
        try:
            if self._fd is None:  # a single token has no rows
                self._create()
            self._temporary.replace(self.path)
        except OSError as e:
            raise ReferenceFileError(f"{self.path} cannot be written: {e.strerror}") from e
        self._close(self.num_bytes)

    def discard(self) -> None:
        """Leaves nothing behind. Does nothing after ``finish``."""
        if self._open:
            with suppress(OSError):
                self._temporary.unlink()
            self._close(0)

    def _close(self, kept_bytes: int) -> None:
        self._open = False
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None
        self._store.ended(self, kept_bytes)


class ReferenceReader:
    """One complete file, read a few rows at a time."""

    def __init__(self, path: Path, tokens: Sequence[int], vocab: int) -> None:
        """Checks the header against what is asked.

        Raises:
            RequestError: no such file, a damaged one, or one of other tokens or another vocabulary.
        """
        self.path, self.vocab = path, vocab
        self._fd: int | None = None
        try:
            with path.open("rb") as file:
                length = int.from_bytes(file.read(8), "little")
                if length > MAX_HEADER_BYTES:
                    raise RequestError(f"{path} is not a reference file: its header claims {length} bytes")
                fields = json.loads(file.read(length))
                (count,) = fields["tokens"]["shape"]
                if count != len(tokens):
                    raise RequestError(
                        f"{path} holds {count!r:.80} tokens, not the {len(tokens)} asked for; store it again"
                    )
                stored = np.frombuffer(file.read(8 * len(tokens)), "<i8").tolist()
                size = os.fstat(file.fileno()).st_size
            self.identity: dict[str, str] = dict(fields["__metadata__"])
            found_vocab = int(fields["logprobs"]["shape"][1])
        except FileNotFoundError:
            name = path.parent.name
            raise RequestError(
                f"reference {name!r} has no log-probabilities of these {len(tokens)} tokens (no {path.name}); store "
                f'them first: send the same prompt with "store": "{name}" to the reference model'
            ) from None
        except RequestError:
            raise
        except _UNREADABLE as e:
            raise RequestError(f"{path} is not a reference file: {e}; remove it and store it again") from e
        if found_vocab != vocab:
            raise RequestError(
                f"reference {path.parent.name!r} is over a vocabulary of {found_vocab} (model "
                f"{self.identity.get('model')}), this model has {vocab}; a divergence needs the same vocabulary"
            )
        if stored != list(tokens):
            raise RequestError(
                f"{path} holds {len(stored)} other tokens than the {len(tokens)} asked for; store it again"
            )
        self._data_at = 8 + length + 8 * len(tokens)
        expected = self._data_at + 4 * vocab * (len(tokens) - 1)
        if size != expected:
            raise RequestError(f"{path} has {size} bytes, expected {expected}; remove it and store it again")

    def read(self, first: int, count: int) -> Rows:
        """Rows ``first ... first + count - 1``, float32 [count, vocab].

        Raises:
            ReferenceFileError: it has been cut or taken away in the meantime.
        """
        row_bytes = 4 * self.vocab
        try:
            if self._fd is None:
                self._fd = os.open(self.path, os.O_RDONLY)
            data = os.pread(self._fd, count * row_bytes, self._data_at + first * row_bytes)
        except OSError as e:
            raise ReferenceFileError(f"{self.path} cannot be read: {e.strerror}") from e
        if len(data) != count * row_bytes:
            raise ReferenceFileError(f"{self.path} was cut while it was read; store it again")
        return np.frombuffer(data, "<f4").reshape(count, self.vocab)

    def close(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


class ReferenceStore:
    """The references below one directory, for one model. Not thread-safe.

    The limit counts what this server found when it last looked and what it has written since.
    """

    def __init__(self, directory: Path, limit_bytes: int, vocab: int, identity: dict[str, str]) -> None:
        """``identity``: what must be equal for rows to stand under one NAME; at least ``model``."""
        self.directory, self.limit_bytes, self.vocab, self.identity = directory, limit_bytes, vocab, identity
        self.counter = itertools.count()
        self._pending: dict[ReferenceWriter, int] = {}
        directory.mkdir(parents=True, exist_ok=True)
        for left in directory.glob(f"*/.*{TEMPORARY}"):
            _remove_if_dead(left)
        self._used_bytes = self._count()

    def _count(self) -> int:
        return sum(p.stat().st_size for p in self.directory.glob(f"*/*{SUFFIX}"))

    def path(self, name: str, tokens: Sequence[int]) -> Path:
        """
        Raises:
            RequestError: a name that is not a plain one.
        """
        if not NAME.fullmatch(name):
            raise RequestError(
                f"reference name {name!r}: expected 1 to 64 letters, digits, dots, dashes and underscores, the first "
                "a letter or a digit"
            )
        return self.directory / name / f"{tokens_digest(tokens)}{SUFFIX}"

    def reader(self, name: str, tokens: Sequence[int]) -> ReferenceReader:
        """
        Raises:
            RequestError: nothing is stored there, or it does not fit this model.
        """
        return ReferenceReader(self.path(name, tokens), tokens, self.vocab)

    def writer(self, name: str, tokens: Sequence[int]) -> ReferenceWriter:
        """Reserves the room.

        Raises:
            StorageError: the limit or the disk has too little left, or the directory is gone.
            RequestError: a name that is not a plain one, or one that holds another model's rows.
        """
        try:
            return self._writer(name, tokens)
        except OSError as e:
            raise StorageError(f"{self.directory} cannot be used: {e.strerror}; make it again") from e

    def _writer(self, name: str, tokens: Sequence[int]) -> ReferenceWriter:
        made = ReferenceWriter(self, self.path(name, tokens), tokens, self.vocab)
        self._check_owner(made.path.parent)
        pending = sum(self._pending.values())
        if self._used_bytes + pending + made.num_bytes > self.limit_bytes:
            self._used_bytes = self._count()  # somebody may have made room
        if self._used_bytes + pending + made.num_bytes > self.limit_bytes:
            raise StorageError(
                f"{len(tokens)} tokens need {made.num_bytes} bytes of reference log-probabilities; of the limit of "
                f"{self.limit_bytes} bytes {self._used_bytes} are used and {pending} promised; remove references from "
                f"{self.directory} or raise --reference-limit-gib"
            )
        free = shutil.disk_usage(self.directory).free
        if pending + made.num_bytes > free:
            raise StorageError(
                f"{len(tokens)} tokens need {made.num_bytes} bytes of reference log-probabilities; the disk of "
                f"{self.directory} has {free} free and {pending} promised; make room"
            )
        self._pending[made] = made.num_bytes
        return made

    def ended(self, writer: ReferenceWriter, kept_bytes: int) -> None:
        """Called by a writer once, with what it left on disk."""
        del self._pending[writer]
        self._used_bytes += kept_bytes

    def _check_owner(self, folder: Path) -> None:
        for path in folder.glob(f"[!.]*{SUFFIX}"):
            found = _metadata(path)
            others = {k: (found.get(k), v) for k, v in self.identity.items() if found.get(k) != v}
            if others:
                said = ", ".join(f"{k} {a} there and {b} here" for k, (a, b) in others.items())
                raise RequestError(
                    f"reference {folder.name!r} holds the rows of another model ({said}); choose a new name"
                )
            return


def _metadata(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            return dict(
                json.loads(file.read(min(int.from_bytes(file.read(8), "little"), MAX_HEADER_BYTES)))["__metadata__"]
            )
    except _UNREADABLE as e:
        raise RequestError(f"{path} is not a reference file: {e}; remove it") from e


def _remove_if_dead(path: Path) -> None:
    """Removes a temporary file unless its writer still holds the lock."""
    with suppress(OSError):
        fd = os.open(path, os.O_RDWR)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            path.unlink()
        finally:
            os.close(fd)
