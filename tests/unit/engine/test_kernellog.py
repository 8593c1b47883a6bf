"""Xids and out-of-memory kills in kernel logs."""

from __future__ import annotations

import pytest

from autotune.engine.kernellog import read_kernel_log


@pytest.mark.parametrize(
    ("line", "code", "hardware"),
    [
        ("[ 12.3] NVRM: Xid (PCI:0000:44:00): 79, pid='<unknown>', GPU has fallen off the bus.", 79, True),
        ("Nov 29 10:00:00 host kernel: NVRM: Xid (PCI:0000:1b:00): 31, pid=77, name=python3, MMU Fault", 31, False),
        ("NVRM: Xid (PCI:0000:1b:00): 48, pid=77, An uncorrectable double bit error (DBE)", 48, True),
        ("NVRM: Xid (PCI:0000:1b:00): 9999, something new", 9999, False),
    ],
)
def test_an_xid_is_read(line: str, code: int, hardware: bool) -> None:
    (xid,) = read_kernel_log([line]).xids
    assert (xid.code, xid.hardware) == (code, hardware)
    assert xid.device.startswith("PCI:0000")


def test_both_lines_of_one_kill_are_one_kill() -> None:
    lines = [
        "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=x,task=VLLM::Worker,pid=4711,uid=0",
        "Memory cgroup out of memory: Killed process 4711 (VLLM::Worker) total-vm:99kB, anon-rss:88kB",
    ]
    (kill,) = read_kernel_log(lines).oom_kills
    assert (kill.pid, kill.process, kill.cgroup) == (4711, "VLLM::Worker", True)


def test_a_kill_of_the_whole_host_is_no_containers() -> None:
    (kill,) = read_kernel_log(["Out of memory: Killed process 12 (python3) total-vm:1kB"]).oom_kills
    assert not kill.cgroup


def test_other_lines_say_nothing_and_memory_is_bounded() -> None:
    findings = read_kernel_log(["usb 1-1: new device", "", "NVRM: loading NVIDIA UNIX x86_64 Kernel Module"])
    assert findings.xids == () and findings.oom_kills == ()
    many = read_kernel_log(f"NVRM: Xid (PCI:0): 31, pid={n}" for n in range(1000))
    assert len(many.xids) == 64
    assert many.xids[-1].line.endswith("999")
