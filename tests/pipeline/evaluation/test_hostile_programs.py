"""Programs that mean harm: each is judged within its limits, leaves nobody behind and touches nothing outside."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import pytest

from pipeline.evaluation import sandbox
from tests.pipeline.evaluation.test_sandbox import _processes_of, isolated

# Each takes its harm as far as it can, in a function that the test calls. CANARY is a file that everybody may write.
HOSTILE: dict[str, str] = {
    "fork bomb": "import os\ndef f():\n    while True: os.fork()",
    "fork bomb that swallows errors": (
        "import os\ndef f():\n    while True:\n        try: os.fork()\n        except OSError: pass"
    ),
    "thread bomb": (
        "import threading, time\ndef f():\n    while True: threading.Thread(target=time.sleep, args=(99,)).start()"
    ),
    "daemon that outlives it": (
        "import os, time\ndef f():\n    if os.fork() == 0:\n        os.setsid()\n"
        "        if os.fork() == 0: time.sleep(999)"
    ),
    "endless output": "import os\ndef f():\n    while True: os.write(1, b'x' * 65536)",
    "endless output to every descriptor": (
        "import os\ndef f():\n    while True:\n        for fd in range(32):\n"
        "            try: os.write(fd, b'x' * 9999)\n            except OSError: pass"
    ),
    "file outside, written": "def f(): open('CANARY', 'w').write('harm')",
    "file outside, by climbing": "def f(): open('../' * 30 + 'CANARY'.lstrip('/'), 'w').write('harm')",
    "file outside, by a symbolic link": (
        "import os\ndef f():\n    os.symlink('CANARY', 'way')\n    open('way', 'w').write('harm')"
    ),
    "file outside, by a hard link": "import os\ndef f(): os.link('CANARY', 'way')",
    "folder outside, removed": (
        "import os, shutil\ndef f():\n    shutil.rmtree(os.path.dirname('CANARY'))\n    os.unlink('CANARY')"
    ),
    "disk filled": (
        "def f():\n    n = 0\n    while True:\n        open(str(n), 'wb').write(b'x' * 999999)\n        n += 1"
    ),
    "inodes used up": "def f():\n    n = 0\n    while True:\n        open(str(n), 'w').close()\n        n += 1",
    "memory": "def f():\n    kept = []\n    while True: kept.append(bytearray(1 << 24))",
    "memory by mapping": (
        "import mmap\ndef f():\n    kept = []\n    while True:\n        kept.append(mmap.mmap(-1, 1 << 26))\n"
        "        kept[-1].write(b'x' * (1 << 26))"
    ),
    "call out": "import socket\ndef f(): socket.create_connection(('192.0.2.1', 80), 2).send(b'secrets')",
    "listen": (
        "import socket\ndef f():\n    s = socket.socket()\n    s.bind(('127.0.0.1', 0))\n    s.listen()\n    s.accept()"
    ),
    "signals to everybody": "import os\ndef f():\n    os.kill(-1, 9)",
    "signals refused": (
        "import signal\nfor s in set(signal.Signals) - {signal.SIGKILL, signal.SIGSTOP}:\n"
        "    signal.signal(s, signal.SIG_IGN)\ndef f():\n    while True: pass"
    ),
    "native code": "import ctypes\ndef f():\n    ctypes.memset(0, 0, 1 << 20)",
    "shell": "import subprocess\ndef f(): subprocess.run(['/bin/sh', '-c', 'echo harm > CANARY'], check=True)",
    "recursion": "import sys\nsys.setrecursionlimit(10**9)\ndef f(n=0): return f(n + 1)",
}


@isolated
@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_program_does_no_harm(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    canary = tmp_path / "outside" / "canary"
    canary.parent.mkdir(mode=0o777)
    canary.write_text("alive")
    canary.chmod(0o666)
    jail, scratch = tmp_path / "jail.py", tmp_path / "scratch"
    shutil.copy(sandbox.JAIL, jail)
    scratch.mkdir(mode=0o755)
    monkeypatch.setattr(sandbox, "COMMAND", [*sandbox.COMMAND[:-1], str(jail)])
    monkeypatch.setattr(sandbox, "_WALL_SLACK_S", 0.5)
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    program = HOSTILE[name].replace("CANARY", str(canary))
    result = sandbox.run(program, "f", "assert f() == 1", cpu_s=0.5)
    assert result.outcome == "failed"
    assert result.reason
    assert canary.read_text() == "alive"
    assert [p.name for p in canary.parent.iterdir()] == ["canary"]
    assert list(scratch.iterdir()) == []
    assert not _processes_of(jail)


@isolated
def test_after_all_of_them_right_code_still_passes() -> None:
    assert sandbox.run("def f(): return 1", "f", "assert f() == 1") == sandbox.Result("passed")
    assert len(HOSTILE) >= 20
