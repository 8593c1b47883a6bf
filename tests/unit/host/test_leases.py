"""Leases: taken as a whole, held by a living process, free as soon as it is dead."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from autotune.errors import EnvironmentFault
from autotune.host.gpus import Gpu, GpuHost, GpuProcess, Link
from autotune.host.leases import LeaseBook, acquire, foreign_uses, leased, release
from autotune.host.processes import ProcessId

GIB = 1 << 30


def gpu(index: int, *, used: int = 0, links: tuple[int, ...] = (), pid: int = 0) -> Gpu:
    processes = (GpuProcess(pid, used, "python train.py"),) if pid else ()
    return Gpu(
        index,
        f"GPU-{index}",
        "H100",
        80 * GIB,
        used,
        processes,
        tuple(Link(other, "nvlink" if other in links else "pcie") for other in range(4) if other != index),
    )


@pytest.fixture
def book(tmp_path: Path) -> LeaseBook:
    return LeaseBook(tmp_path / "leases")


def test_all_or_none(book: LeaseBook) -> None:
    assert book.take(("gpu-a", "gpu-b"), "one") == ()
    held = book.take(("gpu-b", "gpu-c"), "two")
    assert [(holder.resource, holder.study) for holder in held] == [("gpu-b", "one")]
    assert {holder.resource for holder in book.holders()} == {"gpu-a", "gpu-b"}
    book.give_back(("gpu-a", "gpu-b"))
    assert book.take(("gpu-b", "gpu-c"), "two") == ()


def test_what_a_killed_process_held_is_free(book: LeaseBook, tmp_path: Path) -> None:
    code = (
        "import os,sys; from pathlib import Path; from autotune.host.leases import LeaseBook\n"
        "assert LeaseBook(Path(sys.argv[1])).take(('gpu-a',), 'dead') == ()\n"
        "os.kill(os.getpid(), 9)"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path / "leases")], check=False)
    assert done.returncode == -9
    assert (tmp_path / "leases" / "gpu-a.json").exists()
    assert book.take(("gpu-a",), "next") == ()


def test_a_pid_given_to_another_process_holds_nothing(tmp_path: Path) -> None:
    me = ProcessId.of(os.getpid())
    assert me is not None and me.alive
    assert not ProcessId(me.pid, me.ticks + 1, me.boot).alive
    assert not ProcessId(me.pid, me.ticks, "another boot").alive


def test_damaged_file_is_no_lease(book: LeaseBook, tmp_path: Path) -> None:
    (tmp_path / "leases" / "gpu-a.json").write_text('{"resource": "gpu-a", "pro')
    assert book.take(("gpu-a",), "one") == ()


def test_others_leases_are_not_given_back(book: LeaseBook, tmp_path: Path) -> None:
    sleeper = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    other = ProcessId.of(sleeper.pid)
    assert other is not None
    book.take(("gpu-a",), "one")
    path = tmp_path / "leases" / "gpu-a.json"
    path.write_text(path.read_text().replace(f'"pid": {os.getpid()}', f'"pid": {other.pid}'))
    text = path.read_text()
    ticks = ProcessId.of(os.getpid())
    assert ticks is not None
    path.write_text(text.replace(f'"ticks": {ticks.ticks}', f'"ticks": {other.ticks}'))
    book.give_back(("gpu-a",))
    assert [holder.process.pid for holder in book.holders()] == [other.pid]
    sleeper.communicate()


def test_chooses_gpus_that_are_linked(book: LeaseBook) -> None:
    host = GpuHost((gpu(0), gpu(1, links=(3,)), gpu(2), gpu(3, links=(1,))))
    assert acquire(2, "study", book=book, host=host).gpus == (1, 3)
    assert acquire(2, "study", book=book, host=host).gpus == (0, 2)


def test_foreign_process_is_named(book: LeaseBook) -> None:
    host = GpuHost((gpu(0, used=20 * GIB, pid=4242), gpu(1)))
    assert acquire(1, "study", book=book, host=host).gpus == (1,)
    with pytest.raises(EnvironmentFault, match=r"process 4242 \(python train.py\) holds 20.0 GiB"):
        acquire(1, "other", book=book, host=host)
    assert [use.pid for use in foreign_uses(host, ours=[1])] == [4242]
    assert foreign_uses(host, ours=[4242]) == ()


def test_says_who_holds_the_gpus(book: LeaseBook) -> None:
    host = GpuHost((gpu(0),))
    mine = acquire(1, "first-study", book=book, host=host)
    with pytest.raises(EnvironmentFault, match="first-study"):
        acquire(1, "second", book=book, host=host)
    release(mine, book)
    assert acquire(1, "second", book=book, host=host).gpus == (0,)


def test_host_without_gpus(book: LeaseBook) -> None:
    with pytest.raises(EnvironmentFault, match="no NVIDIA driver"):
        acquire(1, "study", book=book, host=GpuHost(problem="no NVIDIA driver"))


def test_port_in_use_is_not_leased(book: LeaseBook, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = other.getsockname()[1]
        monkeypatch.setattr("autotune.host.leases.random.sample", lambda ports, count: [taken, 18_001])
        assert book.take_port("study") == 18_001
        with pytest.raises(EnvironmentFault, match="no free port"):
            book.take_port("study")


async def test_lease_ends_with_its_block(book: LeaseBook) -> None:
    async with leased(0, "study", book=book) as mine:
        assert [holder.resource for holder in book.holders()] == [f"port-{mine.port}"]
    assert book.holders() == ()
