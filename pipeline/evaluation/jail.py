"""The inside of the sandbox: a script of its own, started by ``pipeline.evaluation.sandbox``.

    launcher      own namespaces (user or real root, mount, network, pid, ipc, uts), then forks
      +- pid 1    the guard: builds the root, gives up every privilege, forks, ends at the deadline, when its parent's
         |        pipe closes or when the worker is done; the kernel then kills whatever is left in the pid namespace
         +- worker limits on itself, runs program and tests

The root that program and tests see is an empty tmpfs of a few MiB with the Python library and the system's shared
libraries bound into it read-only: no home, no /etc, no /proc, no /dev but null, no network device.

Standard input brings one line of JSON (the job), then stays open as a sign of life. Standard output takes lines of
JSON: events of the guard and the worker. A pass is a secret that the worker reads from a pipe after the last
assert and echoes, so that ending early, printing or exiting with 0 is no pass.

This file imports only the standard library and nothing of the project: it is read by path. No pathlib: each start
would pay for its import.
"""

# ruff: noqa: PTH101, PTH103, PTH112, PTH114, PTH123, PTH211

from __future__ import annotations

import ctypes
import json
import math
import os
import resource
import select
import signal
import sys
import sysconfig
import time
from typing import Any

NEWNS, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET = (
    0x20000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000,
)  # fmt: skip
MS_NOSUID, MS_NODEV, MS_BIND, MS_REC, MS_PRIVATE = 2, 4, 4096, 16384, 1 << 18
MNT_DETACH, AT_FDCWD, AT_RECURSIVE = 2, -100, 0x8000
SYS_MOUNT_SETATTR = 442  # the same number on every architecture
PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_NO_NEW_PRIVS = 1, 4, 38
CAP_VERSION_3 = 0x20080522

libc = ctypes.CDLL(None, use_errno=True)


class Unavailable(Exception):
    """The machine does not offer the isolation; says which step was refused."""


def must(result: int, what: str) -> None:
    if result != 0:
        raise Unavailable(f"{what}: {os.strerror(ctypes.get_errno())}")


def say(**event: Any) -> None:
    os.write(1, json.dumps(event).encode() + b"\n")


def become(uid: int) -> None:
    try:
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
    except OSError as e:
        raise Unavailable(f"changing to the unprivileged user {uid}: {e.strerror}") from e


def unprivileged_uid(wanted: int) -> int | None:
    """A uid that root may take here: ``wanted``, which nobody else has, or nobody's; None if neither is mapped."""
    with open("/proc/self/uid_map") as f:
        ranges = [(int(x.split()[0]), int(x.split()[2])) for x in f]
    return next((u for u in (wanted, 65534) if any(first <= u < first + n for first, n in ranges)), None)


def enter_namespaces(wanted_uid: int) -> int | None:
    """Puts this process into namespaces of its own; the uid to take once the root directory is built, if any.

    Real root needs no user namespace. Root without the right to make namespaces (a container) first becomes an
    unprivileged user, and then does what an ordinary user does: it takes a user namespace.
    """
    others = NEWNS | NEWUTS | NEWIPC | NEWPID | NEWNET
    if os.geteuid() == 0 and (uid := unprivileged_uid(wanted_uid)) is not None:
        if libc.unshare(others) == 0:
            return uid
        become(uid)
        must(libc.prctl(PR_SET_DUMPABLE, 1, 0, 0, 0), "making /proc/self writable")
    user, group = os.getuid(), os.getgid()
    must(libc.unshare(NEWUSER | others), "unshare (user namespaces)")
    try:
        for name, text in (("setgroups", "deny"), ("uid_map", f"1000 {user} 1"), ("gid_map", f"1000 {group} 1")):
            with open(f"/proc/self/{name}", "w") as f:
                f.write(text)
    except OSError as e:
        raise Unavailable(f"mapping the user of a user namespace: {e.strerror}") from e
    return None


def library_folders() -> list[str]:
    """What an import may need: Python's own library and the folders of shared libraries; none within another."""
    paths = [sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")]
    paths += [p for p in ("/lib", "/lib64", "/usr/lib", "/usr/lib64") if os.path.isdir(p)]
    real = sorted({os.path.realpath(p) for p in paths})
    return [p for p in real if not any(p.startswith(q + "/") for q in real)]


def build_root(base: str, disk_bytes: int) -> None:
    """A tmpfs with read-only libraries as the only file system; the working folder is /tmp in it."""

    def mount(source: str, target: str, kind: str | None, flags: int, data: str | None, what: str) -> None:
        must(libc.mount(source.encode(), target.encode(), kind.encode() if kind else None, flags,
                        data.encode() if data else None), what)  # fmt: skip

    mount("none", "/", None, MS_REC | MS_PRIVATE, None, "making mounts private")
    mount("tmpfs", base, "tmpfs", MS_NOSUID | MS_NODEV, f"size={disk_bytes},nr_inodes=512,mode=755", "mounting a tmpfs")
    root = f"{base}/root"
    for folder in (f"{base}/old", f"{root}/tmp", f"{root}/dev"):
        os.makedirs(folder)
    os.chmod(f"{root}/tmp", 0o1777)
    for folder in library_folders():
        target = root + folder
        os.makedirs(target)
        mount(folder, target, None, MS_BIND | MS_REC, None, f"binding {folder}")
        attributes = (ctypes.c_uint64 * 4)(1 | MS_NOSUID | MS_NODEV, 0, 0, 0)  # MOUNT_ATTR_RDONLY = 1
        must(libc.syscall(SYS_MOUNT_SETATTR, AT_FDCWD, target.encode(), AT_RECURSIVE, ctypes.byref(attributes),
                          ctypes.sizeof(attributes)), f"making {folder} read-only (Linux 5.12 or later)")  # fmt: skip
    for name, to in (("lib", "usr/lib"), ("lib64", "usr/lib64")):
        if os.path.islink(f"/{name}") and not os.path.lexists(f"{root}/{name}"):
            os.symlink(to, f"{root}/{name}")
    with open(f"{root}/dev/null", "w"):
        pass
    mount("/dev/null", f"{root}/dev/null", None, MS_BIND, None, "binding /dev/null")
    must(libc.pivot_root(base.encode(), f"{base}/old".encode()), "pivot_root")
    os.chdir("/")
    must(libc.umount2(b"/old", MNT_DETACH), "letting go of the old root")
    os.chroot("/root")  # the kernel refuses user namespaces, and so new privileges, to whoever is in a chroot
    os.chdir("/tmp")


def drop_privileges() -> None:
    """No capability is left, none can be gained by executing a file, and the worker cannot trace the guard."""
    header, nothing = (ctypes.c_uint32 * 2)(CAP_VERSION_3, 0), (ctypes.c_uint32 * 6)()
    must(libc.capset(ctypes.byref(header), ctypes.byref(nothing)), "dropping capabilities")
    must(libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no_new_privs")
    must(libc.prctl(PR_SET_DUMPABLE, 0, 0, 0, 0), "closing /proc/self")


def limit(job: dict[str, Any]) -> None:
    """Sets the limits of the worker, and tries the one that the kernel does not hold everybody to.

    Raises:
        Unavailable: this user may have any number of processes.
    """
    cpu = max(1, math.ceil(job["cpu_s"]))
    resource.setrlimit(resource.RLIMIT_CPU, (cpu, cpu + 1))  # SIGXCPU first, which can be told from other ends
    for what, value in (
        (resource.RLIMIT_AS, job["memory_bytes"]),
        (resource.RLIMIT_FSIZE, job["file_bytes"]),
        (resource.RLIMIT_NOFILE, 32),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_STACK, 8 << 20),
    ):
        resource.setrlimit(what, (value, value))
    resource.setrlimit(resource.RLIMIT_NPROC, (1, job["processes"]))
    try:
        if os.fork() == 0:
            os._exit(0)
    except BlockingIOError:
        resource.setrlimit(resource.RLIMIT_NPROC, (job["processes"], job["processes"]))
    else:
        raise Unavailable("the kernel does not limit the processes of this user (uid 0 inside a user namespace)")


def work(job: dict[str, Any], secret: int, null: int) -> None:
    """Runs program and tests in one namespace and says how that went. Does not return."""
    for fd in (0, 2):
        os.dup2(null, fd)
    out = os.dup(1)
    os.dup2(null, 1)

    def tell(kind: str, what: str) -> None:
        os.write(out, json.dumps({"event": "failed", "kind": kind, "what": what[:400]}).encode() + b"\n")
        os._exit(0)

    def describe(e: BaseException) -> str:
        try:
            return f"{type(e).__name__}: {e}" if str(e) else type(e).__name__
        except BaseException:
            return type(e).__name__

    namespace: dict[str, Any] = {"__name__": "answer", "__builtins__": __builtins__}
    try:
        exec(compile(job["program"], "answer.py", "exec", dont_inherit=True), namespace)
    except MemoryError:
        tell("memory", "")
    except SyntaxError as e:
        tell("syntax", f"{e.msg} (line {e.lineno})")
    except BaseException as e:
        tell("program", describe(e))
    if not callable(namespace.get(job["entry_point"])):
        tell("missing", job["entry_point"])
    try:
        exec(compile(job["tests"], "tests.py", "exec", dont_inherit=True), namespace)
    except MemoryError:
        tell("memory", "")
    except AssertionError as e:
        line, trace = 0, e.__traceback__
        while trace is not None:
            if trace.tb_frame.f_code.co_filename == "tests.py":
                line = trace.tb_lineno
            trace = trace.tb_next
        source = job["tests"].split("\n")[line - 1].strip() if line else ""
        tell("assert", source or describe(e))
    except BaseException as e:
        tell("tests", describe(e))
    os.write(out, b'{"event": "passed", "secret": "' + os.read(secret, 64) + b'"}\n')
    os._exit(0)


def guard(job: dict[str, Any], uid: int | None) -> None:
    """Pid 1 of the namespace; see the module's docstring. Does not return."""
    try:
        build_root(job["folder"], job["disk_bytes"])
        if uid is not None:
            become(uid)
        drop_privileges()
        null = os.open("/dev/null", os.O_RDWR)
        secret, feed = os.pipe()
        os.write(feed, job.pop("secret").encode())
        os.close(feed)
    except (Unavailable, OSError) as e:
        say(event="unavailable", reason=str(e))
        os._exit(0)
    say(event="started")
    ended, hold = os.pipe()  # the read end sees the worker's death at once
    pid = os.fork()
    if pid == 0:
        os.close(ended)
        try:
            limit(job)
        except (Unavailable, OSError) as e:
            say(event="unavailable", reason=str(e))
            os._exit(0)
        work(job, secret, null)
    os.close(hold)
    deadline = time.monotonic() + job["wall_s"]
    while True:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            break
        left = deadline - time.monotonic()
        if left <= 0:
            say(event="ended", how="wall")
            os._exit(0)
        readable, _, _ = select.select([0, ended], [], [], min(left, 0.5))
        if 0 in readable and not os.read(0, 1):
            os._exit(0)  # the parent is gone
        if ended in readable:
            time.sleep(0.001)
    code = os.waitstatus_to_exitcode(status)
    if code < 0:
        say(event="ended", how="signal", signal=signal.Signals(-code).name)
    else:
        say(event="ended", how="exit", code=code)
    os._exit(0)


def main() -> None:
    job = json.loads(sys.stdin.readline())
    try:
        os.umask(0o022)
        uid = enter_namespaces(job["uid"])
        pid = os.fork()
    except (Unavailable, OSError) as e:
        say(event="unavailable", reason=str(e))
        return
    if pid == 0:
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)  # until the uid changes; then the pipe tells
        guard(job, uid)
    os.waitpid(pid, 0)


if __name__ == "__main__":
    main()
