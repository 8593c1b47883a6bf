"""Cores are divided between neighbours: near the GPU, disjoint, hardware threads of a core together."""

from pathlib import Path

import pytest

from autotune.host.cores import CoreShare, CoreTopology, divide, node_of, read_cores
from autotune.host.gpus import Gpu


def two_sockets(root: Path) -> Path:
    """Two nodes of four physical cores with two threads each: 0-3 and 8-11, 4-7 and 12-15."""
    system = root / "sys/devices/system"
    for node, listed in enumerate(("0-3,8-11", "4-7,12-15")):
        (system / f"node/node{node}").mkdir(parents=True)
        (system / f"node/node{node}/cpulist").write_text(listed + "\n")
    for number in range(16):
        folder = system / f"cpu/cpu{number}/topology"
        folder.mkdir(parents=True)
        (folder / "thread_siblings_list").write_text(f"{number % 8},{number % 8 + 8}\n")
    return root


def test_a_host_is_read_with_its_nodes_and_threads(tmp_path: Path) -> None:
    topology = read_cores(two_sockets(tmp_path), frozenset(range(16)))
    assert topology.nodes == (
        (0, ((0, 8), (1, 9), (2, 10), (3, 11))),
        (1, ((4, 12), (5, 13), (6, 14), (7, 15))),
    )
    assert read_cores(tmp_path, frozenset({1, 9, 4})).nodes == ((0, ((1, 9),)), (1, ((4,),)))
    assert read_cores(tmp_path / "nothing", frozenset({0, 1})).nodes == ((0, ((0,), (1,))),)


def test_neighbours_share_no_core_and_stay_near_their_gpu(tmp_path: Path) -> None:
    topology = read_cores(two_sockets(tmp_path), frozenset(range(16)))
    shares = divide(topology, (1, 0, 1, 0))
    assert [share.node for share in shares] == [1, 0, 1, 0]
    used = [number for share in shares for number in {*share.engine, *share.client}]
    assert len(used) == len(set(used)) == 16
    assert set(shares[0].engine) < {4, 5, 6, 7, 12, 13, 14, 15}
    assert divide(topology, (0, 0))[0] == CoreShare((0, 1, 8, 9), (0, 1, 8, 9), 0), "two cores are too few for two"


def test_the_client_has_cores_of_its_own_where_there_are_enough() -> None:
    topology = CoreTopology(((0, tuple((number,) for number in range(8))),))
    first, second = divide(topology, (None, None))
    assert first == CoreShare((1, 2, 3), (0,))
    assert second == CoreShare((5, 6, 7), (4,))


@pytest.mark.parametrize("places", [(None,), (None, None, None)], ids=["one trial", "too few cores"])
def test_nothing_is_pinned(places: tuple[None, ...]) -> None:
    assert set(divide(CoreTopology(((0, ((0,), (1,))),)), places)) == {CoreShare()}


def test_the_node_of_a_gpu_comes_from_the_driver_or_from_the_bus(tmp_path: Path) -> None:
    device = tmp_path / "sys/bus/pci/devices/0000:17:00.0"
    device.mkdir(parents=True)
    (device / "numa_node").write_text("1\n")
    behind = Gpu(0, "u", "card", 1, 0, pci_bus="00000000:17:00.0")
    told = Gpu(1, "v", "card", 1, 0, numa_node=1)
    assert node_of([behind], tmp_path) == 1
    assert node_of([behind, told], tmp_path) == 1
    assert node_of([told, Gpu(2, "w", "card", 1, 0, numa_node=0)], tmp_path) is None, "across sockets"
    (device / "numa_node").write_text("-1\n")
    assert node_of([behind], tmp_path) is None
