"""The small process between the tuner and an engine: it ends the engine also when the tuner is killed with -9.

It is the engine's parent and the reaper of everything that the engine starts, so no descendant can get away, in
whatever session it hides. It knows that the tuner is gone when its control pipe closes or its own parent changes.

Started by path with ``python -I -S`` (12 ms): it imports nothing but the standard library and nothing of ours. Its
argument is the temporary folder to remove where the tuner is gone before it has handed the job over.
Its input is JSON lines: first a job (see `Job`), then ``{"command": "log", "path": "..."}`` where the job now writes to
another file, and ``{"command": "stop", "grace": 10}``. Its output is JSON lines:
``started`` (pid, ticks), ``refused`` (error), ``exited`` (code, negative for a signal), ``stopped`` (killed,
leftovers).
"""

# pathlib would double the time that this process takes to start.
# ruff: noqa: PTH106, PTH108, PTH114, PTH115, PTH116, PTH118, PTH123, PTH208

from __future__ import annotations

import contextlib
import ctypes
import errno
import json
import os
import select
import signal
import subprocess
import sys
import time
from typing import TypedDict

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
TICK = 0.25
"""Seconds between looks at the parent, the log's size and /dev/shm."""
ORPHAN_GRACE = 3.0
"""Seconds that an engine gets to end by itself after the tuner has vanished."""
KILL_DEADLINE = 20.0
"""Seconds until a process that survives SIGKILL (in an uninterruptible call) is reported and left."""
AFTER_MAIN = 2.0
"""Seconds that the rest of a tree gets to follow its main process."""
SHM_PREFIXES = ("psm_", "vllm_", "sem.mp-", "nccl-", "torch_")
SHM = "/dev/shm"  # noqa: S108


class Job(TypedDict):
    """What to start. Sizes are bytes, grace is seconds.

    When nothing is left of the job, its temporary `folder` and its `record` are removed, also without a tuner.
    """

    argv: list[str]
    env: dict[str, str]
    cwd: str
    log: str
    log_cap: int
    log_keep: int
    grace: float
    folder: str
    record: str
    cpus: list[int]


# --- /proc, shared with the tuner's side -----------------------------------------------------------------------------


def stat_of(pid: int) -> tuple[str, int, int, int, int] | None:
    """State, parent, process group, session and start time in clock ticks since boot; None where `pid` is gone."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as stream:
            fields = stream.read().rpartition(b")")[2].split()
        return fields[0].decode(), int(fields[1]), int(fields[2]), int(fields[3]), int(fields[19])
    except (OSError, ValueError, IndexError):
        return None


def all_pids() -> list[int]:
    """Every process id that /proc shows."""
    return [int(name) for name in os.listdir("/proc") if name.isdecimal()]


def descendants(root: int) -> list[int]:
    """Living descendants of `root` without itself, parents before children; zombies are left out."""
    children: dict[int, list[int]] = {}
    dead: set[int] = set()
    for pid in all_pids():
        stat = stat_of(pid)
        if stat is None:
            continue
        children.setdefault(stat[1], []).append(pid)
        if stat[0] in "ZX":
            dead.add(pid)
    found: list[int] = []
    queue = [root]
    while queue:
        for child in children.get(queue.pop(0), ()):
            queue.append(child)
            if child not in dead:
                found.append(child)
    return found


def shm_of(pids: list[int], names: set[str]) -> set[str]:
    """Which of the shared memory files `names` one of `pids` has mapped or open.

    Compared by inode: a semaphore is made under another name and linked to its own, so the kernel shows the first one.
    """
    inodes: dict[int, str] = {}
    for name in names:
        with contextlib.suppress(OSError):
            inodes[os.stat(f"{SHM}/{name}").st_ino] = name
    seen: set[str] = set()
    for pid in pids:
        with contextlib.suppress(OSError), open(f"/proc/{pid}/maps", "rb") as stream:
            for line in stream:
                if b"/dev/shm/" in line:
                    seen.add(inodes.get(int(line.split(None, 5)[4]), ""))
        with contextlib.suppress(OSError):
            for handle in os.listdir(f"/proc/{pid}/fd"):
                with contextlib.suppress(OSError):
                    if os.readlink(f"/proc/{pid}/fd/{handle}").startswith("/dev/shm/"):  # noqa: S108
                        seen.add(inodes.get(os.stat(f"/proc/{pid}/fd/{handle}").st_ino, ""))
    return seen & names


def shm_names() -> set[str]:
    """Shared memory files of the kinds that engines leave behind."""
    try:
        return {name for name in os.listdir(SHM) if name.startswith(SHM_PREFIXES)}
    except OSError:
        return set()


def send(pid: int, number: int) -> bool:
    """Signal one process; False where it is gone or not ours."""
    try:
        os.kill(pid, number)
    except OSError:
        return False
    return True


def trim_log(path: str, cap: int, keep: int) -> bool:
    """Cut the middle out of a log above `cap` bytes; `keep` bytes of head and of tail stay. True where it was cut.

    The engine appends, so after the cut it goes on behind the kept tail. What it writes within the cut's few
    microseconds may be lost; the disk and the reader are worth that.
    """
    try:
        size = os.stat(path).st_size
        if size <= cap:
            return False
        with open(path, "r+b") as stream:
            stream.seek(size - keep)
            tail = stream.read(keep).partition(b"\n")[2]
            stream.truncate(keep)
        with open(path, "ab") as stream:
            stream.write(b"\n[autotune] %d bytes of this log were cut here\n" % (size - keep - len(tail)) + tail)
    except OSError:
        return False
    return True


def remove_tree(folder: str) -> None:
    """Remove a temporary folder of ours with everything in it; links are removed, not followed."""
    for place, folders, files in os.walk(folder, topdown=False):
        for name in (*files, *folders):
            path = os.path.join(place, name)
            with contextlib.suppress(OSError):
                os.rmdir(path) if name in folders and not os.path.islink(path) else os.unlink(path)
    with contextlib.suppress(OSError):
        os.rmdir(folder)


# --- the process itself ----------------------------------------------------------------------------------------------


class Supervisor:
    """Runs one job until it is told to stop or the tuner is gone."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.parent = os.getppid()
        self.main = 0
        self.exited = False
        self.connected = True
        self.before = shm_names()
        self.ours: set[str] = set()
        self.looked: dict[str, int] = {}
        self.wake, wake_in = os.pipe()
        os.set_blocking(wake_in, False)
        os.set_blocking(self.wake, False)
        signal.set_wakeup_fd(wake_in, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)

    def tell(self, **event: object) -> None:
        """Report to the tuner; a tuner that is gone is noticed here too."""
        try:
            os.write(1, json.dumps(event).encode() + b"\n")
        except OSError:
            self.connected = False

    def start(self) -> bool:
        libc = ctypes.CDLL(None, use_errno=True)
        libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)

        def in_child() -> None:
            # Should this process be killed with -9 itself, the engine's main process goes with it.
            libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
            if self.job["cpus"]:
                os.sched_setaffinity(0, self.job["cpus"])

        try:
            with open(self.job["log"], "ab") as log:
                process = subprocess.Popen(
                    self.job["argv"],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    env=self.job["env"],
                    cwd=self.job["cwd"],
                    start_new_session=True,
                    preexec_fn=in_child,
                )
        except (OSError, subprocess.SubprocessError) as error:
            self.tell(event="refused", error=f"{self.job['argv'][0]}: {error}")
            return False
        self.main = process.pid
        process.returncode = 0  # it is reaped below, with all others
        stat = stat_of(self.main)
        self.tell(event="started", pid=self.main, ticks=stat[4] if stat else 0)
        return True

    def reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid == self.main:
                self.exited = True
                self.tell(event="exited", code=os.waitstatus_to_exitcode(status))

    def notice_shm(self) -> None:
        """Remember which new shared memory is ours, while somebody still has it mapped."""
        fresh = {n for n in shm_names() - self.before - self.ours if self.looked.get(n, 0) < 8}
        if fresh:
            self.ours |= shm_of(descendants(os.getpid()), fresh)
            for name in fresh:
                self.looked[name] = self.looked.get(name, 0) + 1

    def tick(self) -> None:
        self.reap()
        trim_log(self.job["log"], self.job["log_cap"], self.job["log_keep"])
        self.notice_shm()

    def serve(self) -> float:
        """Wait for the order to stop or the end of the tuner; returns the seconds of grace."""
        buffer = b""
        while True:
            ready, _, _ = select.select([0, self.wake], [], [], TICK)
            if self.wake in ready:
                with contextlib.suppress(BlockingIOError):
                    os.read(self.wake, 512)
            if 0 in ready:
                block = os.read(0, 4096)
                if not block:
                    return ORPHAN_GRACE
                buffer += block
                while b"\n" in buffer:
                    line, _, buffer = buffer.partition(b"\n")
                    order = json.loads(line)
                    if order.get("command") == "stop":
                        return float(order.get("grace", self.job["grace"]))
                    if order.get("command") == "log":
                        self.job["log"] = str(order["path"])
            if os.getppid() != self.parent:
                return ORPHAN_GRACE
            self.tick()

    def stop(self, grace: float) -> None:
        """SIGTERM to the group, then SIGKILL to every descendant, until none is left."""
        self.notice_shm()
        with contextlib.suppress(OSError):
            os.killpg(self.main, signal.SIGTERM)
            os.killpg(self.main, signal.SIGCONT)
        deadline = time.monotonic() + grace
        followed = False
        while (left := self.remaining()) and time.monotonic() < deadline:
            if self.exited and not followed:
                followed = True
                deadline = min(deadline, time.monotonic() + AFTER_MAIN)
            self.pause(0.05)
        killed = bool(left)
        deadline = time.monotonic() + KILL_DEADLINE
        while (left := self.remaining()) and time.monotonic() < deadline:
            for pid in left:
                send(pid, signal.SIGKILL)
            self.pause(0.02)
        leftovers = [f"process {pid} survives SIGKILL" for pid in left]
        leftovers += self.remove_shm()
        remove_tree(self.job["folder"])
        if not leftovers:
            with contextlib.suppress(OSError):
                os.unlink(self.job["record"])
        self.tell(event="stopped", killed=killed, leftovers=leftovers)

    def remaining(self) -> list[int]:
        self.reap()
        return descendants(os.getpid())

    def pause(self, seconds: float) -> None:
        select.select([self.wake], [], [], seconds)
        with contextlib.suppress(BlockingIOError):
            os.read(self.wake, 512)

    def remove_shm(self) -> list[str]:
        problems = []
        for name in sorted(self.ours):
            try:
                os.unlink(f"{SHM}/{name}")
            except OSError as error:
                if error.errno != errno.ENOENT:
                    problems.append(f"{SHM}/{name}: {error.strerror}")
        return problems


def read_job() -> Job | None:
    """The first line of the input; None where the tuner went away before it was complete."""
    line = b""
    while not line.endswith(b"\n"):
        # Byte by byte would be slow and a buffer would swallow the orders behind it: the tuner waits for `started`.
        block = os.read(0, 1 << 16)
        if not block:
            return None
        line += block
    job: Job = json.loads(line)
    return job


def main() -> int:
    """Entry point."""
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGPIPE):
        # A handler that does nothing, because an ignored signal would stay ignored in the engine.
        signal.signal(number, lambda *_: None)
    job = read_job()
    if job is None:
        for folder in sys.argv[1:]:
            remove_tree(folder)
        return 0
    supervisor = Supervisor(job)
    terminated = {"now": False}

    def on_term(*_: object) -> None:
        terminated["now"] = True
        raise InterruptedError

    if not supervisor.start():
        return 1
    signal.signal(signal.SIGTERM, on_term)
    try:
        grace = supervisor.serve()
    except InterruptedError:
        grace = ORPHAN_GRACE
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    supervisor.stop(grace)
    return 0


if __name__ == "__main__":
    sys.exit(main())
