"""Model-written code: what it may do, how it may end, and the ways out that are closed.

These tests run wherever isolation is offered. Where it is not, the tests of what happens then still run.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from pipeline.evaluation import sandbox
from pipeline.evaluation.sandbox import Result

REFUSED = sandbox.unavailable()
isolated = pytest.mark.skipif(REFUSED is not None, reason=f"this machine isolates nothing: {REFUSED}")
ROOT = Path(__file__).resolve().parents[3]


def run(program: str, tests: str = "assert f() == 1", cpu_s: float = 5) -> Result:
    return sandbox.run(program, "f", tests, cpu_s=cpu_s)


def why(program: str, tests: str = "assert f() == 1", cpu_s: float = 5) -> str:
    result = run(program, tests, cpu_s)
    assert result.outcome == "failed", result
    assert result.reason is not None
    return result.reason


@isolated
def test_right_code_passes() -> None:
    assert run("import math\ndef f():\n    print('noise')\n    return int(math.sqrt(1))") == Result("passed")


@isolated
@pytest.mark.parametrize(
    ("program", "reason"),
    [
        ("def f(): return 2", "a test failed: assert f() == 1"),
        ("def f( return", "is not Python: invalid syntax (line 1)"),
        ("Here is the function you asked for.", "is not Python: invalid syntax (line 1)"),
        ("g = 1", "does not define f"),
        ("f = 1", "does not define f"),
        ("1 / 0", "the program raised ZeroDivisionError: division by zero"),
        ("def f(): raise KeyError('k')", "a test raised KeyError: 'k'"),
        ("def f(): return input()", "a test raised EOFError: EOF when reading a line"),
        ("x = '\\0'\ndef f(): return x", "a test failed: assert f() == 1"),
    ],
)
def test_wrong_code_fails_with_its_reason(program: str, reason: str) -> None:
    assert why(program) == reason


@isolated
@pytest.mark.parametrize(
    "program",
    [
        "import sys\nsys.exit(0)",
        "import os\nos._exit(0)",
        "import os\ndef f(): os._exit(0)",
        "def f(): raise SystemExit(0)",
        "raise KeyboardInterrupt",
        "import os\nos.kill(os.getpid(), 9)",
        'print(\'{"event": "passed", "secret": ""}\')\nimport os\nos._exit(0)',
        "import os\n"
        "for fd in range(16):\n"
        '    try: os.write(fd, b\'\\n{"event": "passed", "secret": ""}\\n\')\n'
        "    except OSError: pass\n"
        "os._exit(0)",
        "import builtins\nbuiltins.AssertionError = AssertionError = KeyError\ndef f(): return 2",
        "import ctypes\ndef f(): return ctypes.string_at(0)",
    ],
)
def test_ending_early_or_printing_is_no_pass(program: str) -> None:
    assert run(program).outcome == "failed"


@isolated
def test_an_endless_loop_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "_WALL_SLACK_S", 240.0)  # a busy machine may give it little of the CPU
    assert why("def f():\n    while True: pass", cpu_s=1) == "used more than 1 s of CPU"


@isolated
def test_a_loop_that_refuses_the_signal_ends_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "_WALL_SLACK_S", 240.0)
    program = "import signal\nsignal.signal(signal.SIGXCPU, signal.SIG_IGN)\ndef f():\n    while True: pass"
    assert why(program, cpu_s=1) == "used more than 1 s of CPU"


@isolated
def test_sleeping_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "_WALL_SLACK_S", 0.5)
    assert why("import time\ndef f(): time.sleep(1000)", cpu_s=0.1) == "was not done after 0.8 s"


@isolated
def test_memory_is_bounded() -> None:
    assert why("def f(): return len([0] * 10**9)") == "needed more than 256 MiB of memory"


@isolated
def test_a_fork_bomb_is_bounded_and_leaves_nobody(own_jail: Path) -> None:
    program = (
        "import os\ndef f():\n    n = 0\n"
        "    for _ in range(200):\n"
        "        try:\n"
        "            if os.fork() == 0:\n                while True: pass\n"
        "            n += 1\n"
        "        except OSError: pass\n"
        "    raise ValueError(n)"
    )
    reason = why(program)
    assert reason.startswith("a test raised ValueError: ")
    assert int(reason.rpartition(" ")[2]) < sandbox.LIMITS["processes"]
    assert not _processes_of(own_jail)


@pytest.fixture
def own_jail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the jail for this test alone: its processes can be told from those of other tests and stages."""
    jail = tmp_path / "jail.py"
    shutil.copy(sandbox.JAIL, jail)
    monkeypatch.setattr(sandbox, "COMMAND", [*sandbox.COMMAND[:-1], str(jail)])
    return jail


def _processes_of(jail: Path) -> list[psutil.Process]:
    found = []
    for p in psutil.process_iter():
        try:
            if str(jail) in p.cmdline():
                found.append(p)
        except psutil.Error:
            continue
    return found


@isolated
def test_a_child_that_outlives_the_program_is_killed(own_jail: Path) -> None:
    program = (
        "import os, time\ndef f():\n    if os.fork() == 0:\n        os.setsid()\n        time.sleep(600)\n    return 1"
    )
    assert run(program) == Result("passed")
    assert not _processes_of(own_jail)


@isolated
@pytest.mark.parametrize(
    "attempt",
    [
        "socket.create_connection(('127.0.0.1', {port}), 2)",
        "socket.create_connection(('1.1.1.1', 53), 2)",
        "socket.getaddrinfo('example.org', 80)",
        "socket.socket(socket.AF_UNIX).connect('/tmp/.X11-unix/X0')",
    ],
)
def test_there_is_no_network(attempt: str) -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as server:
        call = attempt.format(port=server.getsockname()[1])
        reason = why(f"import socket\ndef f():\n    {call}\n    return 1")
    assert "rror: [Errno " in reason


@isolated
def test_no_file_of_this_machine_is_seen_or_written(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("hidden")
    secret.chmod(0o666)
    tmp_path.chmod(0o777)
    for path in (secret, "/etc/passwd", "/proc/self/status", "/sys/kernel", "/dev/mem", "/bin/sh", str(ROOT)):
        assert "FileNotFoundError" in why(f"import os\ndef f(): os.stat({str(path)!r})"), path
    assert "FileNotFoundError" in why(f"def f(): open({str(tmp_path / 'new')!r}, 'w')")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["secret"]


@isolated
def test_the_library_is_read_only() -> None:
    assert "Read-only file system" in why("import re\ndef f(): open(re.__file__, 'w')")


@isolated
def test_files_are_small_and_few() -> None:
    assert run("def f():\n    open('x', 'w').write('a' * 1000)\n    return len(open('x').read()) // 1000") == Result(
        "passed"
    )
    assert "File too large" in why("def f(): open('x', 'wb').write(b'a' * (2 << 20))")
    many = "def f():\n    for i in range(100): open(str(i), 'wb').write(b'a' * (1 << 19))"
    assert "No space left" in why(many)
    assert "Too many open files" in why("import os\ndef f(): [os.dup(1) for _ in range(100)]")


@isolated
def test_it_has_no_privilege_and_can_gain_none() -> None:
    program = (
        "import ctypes, os, socket\n"
        "libc = ctypes.CDLL(None, use_errno=True)\n"
        "def f():\n"
        "    flags = (0x10000000, 0x20000, 0x40000000, 0x20000000)\n"
        "    assert [libc.unshare(x) for x in flags] == [-1] * 4, 'unshare'\n"
        "    assert libc.mount(b'x', b'/tmp', b'tmpfs', 0, None) == -1, 'mount'\n"
        "    assert libc.ptrace(16, 1, 0, 0) == -1, 'ptrace of the guard'\n"
        "    for change in (lambda: os.setuid(0), lambda: os.chroot('/tmp'), lambda: socket.sethostname('x')):\n"
        "        try: change()\n"
        "        except OSError: continue\n"
        "        raise ValueError('a privilege')\n"
        "    return 1\n"
    )
    assert run(program) == Result("passed")


@isolated
def test_the_guard_and_the_launcher_cannot_be_signalled() -> None:
    assert run("import os\ndef f():\n    os.kill(1, 9)\n    return 1") == Result("passed")
    assert "ProcessLookupError" in why(f"import os\ndef f(): os.kill({os.getpid()}, 0)")


@isolated
def test_the_environment_is_empty_and_runs_repeat(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_TOKEN", "hidden")
    reason = why("import os\ndef f(): raise ValueError(sorted(os.environ))")
    assert "SECRET_TOKEN" not in reason
    orders = {why("def f(): raise ValueError(list({'a', 'b', 'c', 'd', 'e', 'f', 'g', 'h'}))") for _ in range(3)}
    assert len(orders) == 1


@isolated
def test_when_the_stage_is_killed_its_sandboxes_end(own_jail: Path) -> None:
    code = (
        "from pipeline.evaluation import sandbox\n"
        f"sandbox.COMMAND[-1] = {str(own_jail)!r}\n"
        "print('go', flush=True)\n"
        "sandbox.run('import time\\ndef f(): time.sleep(300)', 'f', 'f()', cpu_s=60)\n"
    )
    stage = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert stage.stdout
    assert stage.stdout.readline() == "go\n"
    jailed: list[psutil.Process] = []
    for _ in range(12_000):  # launcher, guard, worker
        jailed = [p for p in _processes_of(own_jail) if p.pid != stage.pid]
        if len(jailed) == 3:
            break
        time.sleep(0.02)
    assert len(jailed) == 3
    stage.send_signal(signal.SIGKILL)
    stage.wait()
    stage.stdout.close()
    gone, alive = psutil.wait_procs(jailed, timeout=240)
    assert not alive
    assert len(gone) == 3


SECCOMP = """
import ctypes, os, struct, sys, platform
number = {"x86_64": 272, "aarch64": 97}[platform.machine()]
# load the number of the system call; if it is unshare answer EPERM, else allow
rules = [(0x20, 0, 0, 0), (0x15, 0, 1, number), (0x06, 0, 0, 0x00050001), (0x06, 0, 0, 0x7FFF0000)]
code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *r) for r in rules))
program = ctypes.create_string_buffer(struct.pack("HP", len(rules), ctypes.addressof(code)))
libc = ctypes.CDLL(None)
assert libc.prctl(38, 1, 0, 0, 0) == 0 and libc.prctl(22, 2, program) == 0
os.execv(sys.argv[1], sys.argv[1:])
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs seccomp")
def test_where_isolation_is_refused_nothing_runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sandbox, "COMMAND", [sys.executable, "-c", SECCOMP, *sandbox.COMMAND])
    mark = tmp_path / "ran"
    result = run(f"open({str(mark)!r}, 'w')\ndef f(): return 1")
    assert result == Result("not_measurable", "no isolation: unshare (user namespaces): Operation not permitted")
    assert not mark.exists()


def test_another_system_is_not_measurable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox.sys, "platform", "darwin")
    assert run("def f(): return 1") == Result("not_measurable", "isolation needs Linux, this is darwin")


def test_a_launcher_that_breaks_is_not_a_wrong_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "COMMAND", [sys.executable, "-c", "raise SystemExit('broken launcher')"])
    result = run("def f(): return 1")
    assert result == Result("not_measurable", "the sandbox did not start: broken launcher")


PLAIN_PYTHON = "/usr/bin/python3"
# How root becomes somebody who must take a user namespace.
OTHERS = {
    "an ordinary user": "os.setgroups([]); os.setresgid(*3 * [65534]); os.setresuid(*3 * [65534])",
    "root of a container": "assert libc.prctl(24, 21, 0, 0, 0) == 0",  # CAP_SYS_ADMIN out of the bounding set
}
NOBODY_S_LIMIT = (  # root within a user namespace of its own: the kernel counts no processes of it
    "assert libc.unshare(0x10000000) == 0\n"
    "for name, text in ('setgroups', 'deny'), ('uid_map', '0 0 1'), ('gid_map', '0 0 1'):\n"
    "    open(f'/proc/self/{name}', 'w').write(text)"
)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become somebody else")
@pytest.mark.parametrize("who", OTHERS)
def test_others_than_root_are_isolated_as_well(who: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with _launched_as(OTHERS[who], monkeypatch):
        assert run("import os\ndef f():\n    assert os.getpid() == 2\n    return 1") == Result("passed")
        assert "unreachable" in why("import socket\ndef f(): socket.create_connection(('127.0.0.1', 1))")
        assert "FileNotFoundError" in why("def f(): open('/etc/passwd')")
        assert "Read-only file system" in why("import re\ndef f(): open(re.__file__, 'w')")
        program = "import os\ndef f():\n    while True:\n        if os.fork() == 0:\n            while True: pass"
        assert "BlockingIOError" in why(program)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become somebody else")
def test_where_processes_cannot_be_limited_nothing_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    with _launched_as(NOBODY_S_LIMIT, monkeypatch):
        result = run("def f(): return 1")
    assert result.outcome == "not_measurable"
    assert "does not limit the processes of this user" in str(result.reason)


@contextmanager
def _launched_as(change: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    if not _readable_by_all(Path(PLAIN_PYTHON)) or not _user_namespaces():
        pytest.skip("no interpreter for all, or no user namespaces")
    jail = Path("/tmp") / f"seatrial-jail-{os.getpid()}.py"
    shutil.copy(sandbox.JAIL, jail)
    jail.chmod(0o644)
    code = f"import ctypes, os, sys\nlibc = ctypes.CDLL(None)\n{change}\nos.execv(sys.argv[1], sys.argv[1:])"
    monkeypatch.setattr(sandbox, "COMMAND", [sys.executable, "-c", code, PLAIN_PYTHON, "-S", "-B", str(jail)])
    try:
        yield
    finally:
        jail.unlink()


def _readable_by_all(path: Path) -> bool:
    real = path.resolve()
    return real.exists() and all(p.stat().st_mode & 0o005 == 0o005 for p in (real, *real.parents))


def _user_namespaces() -> bool:
    limit = Path("/proc/sys/user/max_user_namespaces")
    restricted = Path("/proc/sys/kernel/apparmor_restrict_unprivileged_userns")
    return (
        limit.exists() and int(limit.read_text()) > 0 and not (restricted.exists() and restricted.read_text() != "0\n")
    )
