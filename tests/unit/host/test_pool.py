"""GPUs that trials share: who waits for whom, and whose engine ends."""

from __future__ import annotations

import asyncio

from autotune.host.gpus import Gpu, Link
from autotune.host.pool import OVERTAKEN, GpuPool


class Engines:
    """Remembers whose engine was ended."""

    def __init__(self) -> None:
        self.ended: list[int] = []

    async def end(self, place: int) -> None:
        self.ended.append(place)


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def test_what_one_layout_leaves_serves_another_trial() -> None:
    engines = Engines()
    pool = GpuPool(range(4), (), engines.end)
    assert await pool.take(0, 2) == (0, 1)
    assert await pool.take(1, 1) == (2,)
    assert await pool.take(2, 1) == (3,)
    waiting = asyncio.create_task(pool.take(3, 2))
    await settle()
    assert not waiting.done(), "all are taken"
    pool.done(1)
    await settle()
    assert not waiting.done() and engines.ended == [], "one is not enough; its engine may yet be of use"
    pool.done(2)
    assert await waiting == (2, 3)
    assert engines.ended == [1, 2]


async def test_one_more_is_proposed_while_there_is_a_gpu_that_it_may_have() -> None:
    pool = GpuPool(range(4), (), Engines().end)
    for place in range(3):
        await pool.take(place, 1)
    large = asyncio.create_task(pool.take(3, 4))
    await settle()
    await pool.room()
    other = asyncio.create_task(pool.take(4, 2))
    room = asyncio.create_task(pool.room())
    await settle()
    assert not room.done(), "two wait, although one GPU is free"
    pool.done(0)
    assert await other == (0, 3), "it went before the large one, which could not have begun"
    await settle()
    assert not room.done(), "all are taken"
    for place in (1, 2, 4):
        pool.done(place)
    assert await large == (0, 1, 2, 3)
    pool.done(3)
    await room


async def test_a_place_keeps_its_gpus_for_a_live_change_until_they_are_needed() -> None:
    engines = Engines()
    pool = GpuPool(range(3), (), engines.end)
    first = await pool.take(0, 2)
    pool.done(0)
    assert await pool.take(0, 2) == first and engines.ended == []
    pool.done(0)
    assert await pool.take(0, 1) == (0,) and engines.ended == [0], "a smaller layout starts anew"


async def test_a_large_trial_is_overtaken_so_often_and_no_more() -> None:
    pool = GpuPool(range(4), (), Engines().end)
    for place in range(3):
        await pool.take(place, 1)
    large = asyncio.create_task(pool.take(3, 4))
    await settle()
    for place in range(4, 4 + OVERTAKEN):
        assert await pool.take(place, 1) == (3,), "what it cannot use yet serves others"
        pool.done(place)
    small, room = asyncio.create_task(pool.take(8, 1)), asyncio.create_task(pool.room())
    await settle()
    assert not small.done() and not room.done()
    for place in range(3):
        assert not large.done()
        pool.done(place)
        await settle()
    assert large.done() and not small.done()
    pool.done(3)
    assert await small == (0,)


async def test_who_came_first_goes_first_where_both_could() -> None:
    pool = GpuPool(range(4), (), Engines().end)
    await pool.take(0, 4)
    first, second = (asyncio.create_task(pool.take(place, 3)) for place in (1, 2))
    small = asyncio.create_task(pool.take(3, 1))
    await settle()
    pool.done(0)
    await settle()
    assert first.done() and small.done() and not second.done()


async def test_a_wait_that_is_cancelled_leaves_the_others_their_turn() -> None:
    pool = GpuPool(range(2), (), Engines().end)
    await pool.take(0, 2)
    given_up, next_one = (asyncio.create_task(pool.take(place, 1)) for place in (1, 2))
    await settle()
    given_up.cancel()
    pool.done(0)
    assert await next_one == (0,)
    assert await pool.take(3, 1) == (1,), "nothing was lost with the one that gave up"


async def test_a_group_is_taken_whose_gpus_reach_each_other_best() -> None:
    cards = tuple(
        Gpu(
            index, f"GPU-{index}", "NVIDIA H100 80GB HBM3", 80 << 30, 0,
            links=tuple(
                Link(other, "nvlink" if other % 2 == index % 2 else "numa") for other in range(4) if other != index
            ),
        )
        for index in range(4)
    )  # fmt: skip
    pool = GpuPool(range(4), cards, Engines().end)
    assert await pool.take(0, 2) == (0, 2)
    assert await pool.take(1, 2) == (1, 3)
