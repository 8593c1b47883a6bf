"""Groups of GPUs by their links. Hosts are what NVML's reader gives, made by hand."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from autotune.host.gpus import FakeGpus, Gpu, GpuHost, Link
from autotune.host.leases import LeaseBook, acquire, release
from autotune.host.topology import in_order, link_between, nearest, slowest_link, tensor_links, trial_group

Kind = Callable[[int, int], str]


def host(count: int, kind: Kind, numa: Callable[[int], int | None] = lambda index: None) -> tuple[Gpu, ...]:
    return tuple(
        Gpu(
            index, f"GPU-{index}", "H100", 80 << 30, 0, numa_node=numa(index),
            links=tuple(Link(other, kind(index, other)) for other in range(count) if other != index),
        )
        for index in range(count)
    )  # fmt: skip


def pairs(one: int, other: int) -> str:
    """Bridges 0-4, 1-5, 2-6, 3-7; two sockets, 0 to 3 and 4 to 7."""
    return "nvlink" if abs(one - other) == 4 else "pcie" if (one < 4) == (other < 4) else "numa"


def switched(one: int, other: int) -> str:
    return "nvlink"


def quads(one: int, other: int) -> str:
    """NVLink inside 0, 2, 4, 6 and inside 1, 3, 5, 7; sockets between."""
    return "nvlink" if one % 2 == other % 2 else "numa"


def indices(group: tuple[Gpu, ...]) -> list[int]:
    return [gpu.index for gpu in group]


def test_links_of_pairs_and_groups() -> None:
    gpus = host(8, pairs)
    assert link_between(gpus[0], gpus[4]) == "nvlink"
    assert slowest_link((gpus[0], gpus[4])) == "nvlink"
    assert slowest_link((gpus[0], gpus[4], gpus[1])) == "numa"
    assert slowest_link((gpus[0],)) == ""
    assert slowest_link((Gpu(0, "a", "x", 1, 0), Gpu(1, "b", "x", 1, 0))) == "", "nobody knows"


def test_two_gpus_with_a_bridge_go_before_two_with_low_numbers() -> None:
    assert indices(nearest(host(8, pairs), 2)) == [0, 4]
    assert indices(nearest(host(8, pairs)[1:], 2)) == [1, 5]
    assert indices(nearest(host(8, switched), 2)) == [0, 1]


def test_a_group_is_taken_whole_where_one_fits() -> None:
    assert sorted(indices(nearest(host(8, quads), 4))) == [0, 2, 4, 6]
    # 0 is taken: three are left of one island and four of the other, which is taken whole.
    assert sorted(indices(nearest(host(8, quads)[1:], 4))) == [1, 3, 5, 7]
    # Two of the island that is broken already, so that the other one stays whole.
    assert sorted(indices(nearest([gpu for gpu in host(8, quads) if gpu.index != 2], 2))) == [0, 4]


def test_the_order_puts_tensor_parallel_groups_on_fast_links() -> None:
    order = nearest(host(8, pairs), 8)
    assert tensor_links(order) == {2: "nvlink", 3: "numa", 4: "numa", 5: "numa", 6: "numa", 7: "numa", 8: "numa"}
    assert {frozenset(indices(order[at : at + 2])) for at in range(0, 8, 2)} == {
        frozenset({index, index + 4}) for index in range(4)
    }
    assert tensor_links(nearest(host(8, quads), 8))[4] == "nvlink"
    assert tensor_links(host(8, pairs))[2] == "pcie", "in the order of their numbers pairs have no bridge"
    assert sorted(indices(in_order(host(6, quads)))) == list(range(6))


def test_sockets_count_where_links_are_alike() -> None:
    gpus = host(4, lambda one, other: "pcie", lambda index: index % 2)
    assert indices(nearest(gpus, 2)) == [0, 2]


@pytest.mark.parametrize("count", [0, 9])
def test_no_group_is_no_group(count: int) -> None:
    assert nearest(host(8, pairs), count) == ()
    assert trial_group(None, None, 2) == ()


def test_leases_take_groups_in_the_order_of_their_links(tmp_path: Path) -> None:
    book, seen = LeaseBook(tmp_path / "leases"), FakeGpus([GpuHost(host(8, pairs))]).read()
    leases = [acquire(2, f"study-{number}", book=book, host=seen) for number in range(3)]
    assert [lease.gpus for lease in leases] == [(0, 4), (1, 5), (2, 6)]
    four = acquire(2, "last", book=book, host=seen)
    assert four.gpus == (3, 7)
    for lease in (*leases, four):
        release(lease, book)
    all_eight = acquire(8, "whole", book=book, host=seen)
    assert [set(all_eight.gpus[at : at + 2]) for at in range(0, 8, 2)] == [{0, 4}, {1, 5}, {2, 6}, {3, 7}]
    release(all_eight, book)
