"""`autotune bench` on a scripted server."""

from __future__ import annotations

import asyncio
import json
import re

import pytest
from typer import Typer
from typer.testing import CliRunner

from autotune.cli import bench as command
from autotune.errors import AutotuneError, EnvironmentFault, SpecError
from autotune.load.bench import BenchPlan, bench, first_model
from autotune.load.knee import Ramp
from autotune.load.page import render_html
from autotune.load.placement import place_load
from autotune.load.vllm_definitions import read_records, vllm_figures
from autotune.spec.study import LoadSpec, SloSpec, WarmupSpec, WindowSpec

app = Typer()
app.command()(command.bench)

LOAD = LoadSpec(
    input_tokens=16, output_tokens=6, levels=[1, 3], warmup=WarmupSpec(requests=4, max_duration=1.0),
    window=WindowSpec(duration=0.3, requests=16, max_duration=30.0), stop_hopeless=False,
)  # fmt: skip


def plan(tmp_path, **changes) -> BenchPlan:
    values = {"load": LOAD, "slos": (), "ramp": None, "find_capacity": False, "seed": 1, "limit": None}
    return BenchPlan(**(values | {"folder": tmp_path} | changes))


async def test_levels_and_the_page(start_server, tmp_path):
    server = await start_server()
    report = await bench(server.target, plan(tmp_path))
    assert [level.level.value for level in report.levels] == [1, 3]
    page = render_html(report)
    assert "<svg" in page and "c=3" in page and "http-equiv" not in page and "<script" not in page


async def test_a_ramp_finds_a_servers_knee(start_server, pieces, tmp_path):
    """Four requests at a time are answered, the others wait: the knee is at four."""
    places = asyncio.Semaphore(4)

    async def script(server, request, reply):
        async with places:
            await pieces.plain(server, request, reply)

    server = await start_server(script, ttft=0.03, step=0.004)
    report = await bench(server.target, plan(tmp_path, ramp=Ramp(1, 32, 2.0)))
    assert report.knee is not None
    assert report.knee.level.value in (4, 8)
    assert report.knee.saturated
    assert "knee" in render_html(report)


async def test_capacity_under_an_slo(start_server, pieces, tmp_path):
    places = asyncio.Semaphore(4)

    async def script(server, request, reply):
        async with places:
            await pieces.plain(server, request, reply)

    server = await start_server(script, ttft=0.05, step=0.01)
    slo = SloSpec(metric="ttft", percentile=50, limit="90ms")
    report = await bench(server.target, plan(tmp_path, ramp=Ramp(1, 16, 4.0), slos=(slo,), find_capacity=True))
    assert report.capacity is not None and 3 <= report.capacity.value <= 7


async def test_vllms_definitions(start_server, pieces, tmp_path):
    """An empty first chunk counts as the first token there, and the whole run is the window."""

    async def script(server, request, reply):
        await reply.head()
        await reply.body(pieces.chunk(""))
        await asyncio.sleep(0.05)
        for _ in range(5):
            await reply.body(pieces.chunk(" a"))
        await reply.body(pieces.usage(16, 6) + pieces.done)
        await reply.end()

    server = await start_server(script)
    load = LOAD.model_copy(update={"levels": [2], "warmup": WarmupSpec(requests=0)})
    report = await bench(server.target, plan(tmp_path, load=load, limit=20))
    (level,) = report.levels
    assert len(server.requests) == 20
    figures = vllm_figures(read_records(level.samples))
    assert figures["completed"] == 20
    assert figures["mean_ttft_ms"] < 40
    assert figures["mean_tpot_ms"] > 8
    assert figures["output_throughput"] == pytest.approx(20 * 6 / figures["duration"])
    assert figures["total_input_tokens"] == 20 * 16


async def test_the_command_prints_a_table_json_and_a_page(start_server, tmp_path):
    server = await start_server()
    arguments = [server.target.url, "--levels", "2", "--duration", "500ms", "--input-tokens", "16", "--output-tokens",
                 "4", "--vocabulary", "32000"]  # fmt: skip
    page = tmp_path / "curve.html"
    table = await asyncio.to_thread(CliRunner().invoke, app, [*arguments, "--html", str(page)])
    assert table.exit_code == 0, table.output
    assert "c=2" in table.output and "mock" in table.output
    few = re.search(r"p95 needs 60 requests, the window had (\d+): a longer --duration", " ".join(table.output.split()))
    assert (few is not None) == bool(re.search(r"c=2 .*–", table.output)), "a dash has its reason"
    assert page.read_text().startswith("<!doctype html>")
    machine = await asyncio.to_thread(CliRunner().invoke, app, [*arguments, "--json"])
    body = json.loads(machine.stdout)
    assert body["model"] == "mock"
    assert body["levels"][0]["metrics"]["ttft_mean_ms"]["value"] > 0


@pytest.mark.parametrize(
    ("how", "why"), [([], "every request fails: "), (["--definitions", "vllm"], r"failed requests: \d+ x ")]
)
async def test_a_server_that_answers_nothing_is_a_fault_in_its_own_words(start_server, how, why):
    async def script(server, request, reply):
        await reply.plain("400 Bad Request", b'{"error":{"message":"At most 2 image(s) may be provided","code":400}}')

    server = await start_server(script)
    arguments = [server.target.url, "--levels", "64", "--duration", "500ms", "--vocabulary", "32000"]
    done = await asyncio.to_thread(CliRunner().invoke, app, [*arguments, *how])
    assert isinstance(done.exception, EnvironmentFault)
    assert re.search(rf"c=64: .*{why}HTTP 400: At most 2 image\(s\) may be provided", str(done.exception))
    assert "load" not in done.stdout, "no table without figures"


async def test_the_first_listed_model_is_asked_for(start_server):
    server = await start_server()
    assert await first_model(server.target) == "mock"
    await server.stop()
    with pytest.raises(AutotuneError, match="cannot reach"):
        await first_model(server.target)


@pytest.mark.parametrize("text", ["ttft", "ttft:95:500ms", "ttft:p95:fast", "speed:p95:1s", "ttft:p100:1s"])
def test_bad_slos_say_what_is_legal(text):
    with pytest.raises(SpecError, match="is no SLO"):
        command.parse_slo(text)


@pytest.mark.parametrize(
    "arguments",
    [["--levels", "0"], ["--levels", "a"], ["--input-tokens", "x"], ["--duration", "soon"], ["--definitions", "mine"],
     ["--capacity"], ["--arrivals", "often"]],
)  # fmt: skip
def test_bad_options_say_what_is_legal(arguments):
    result = CliRunner().invoke(app, ["http://127.0.0.1:1", *arguments])
    assert isinstance(result.exception, SpecError)


async def test_a_load_is_placed_at_the_baselines_knee(start_server, pieces, client, tmp_path):
    places = asyncio.Semaphore(4)

    async def script(server, request, reply):
        async with places:
            await pieces.plain(server, request, reply)

    server = await start_server(script, ttft=0.03, step=0.004)
    load = LOAD.model_copy(update={"knee": 1.0})
    placed = await place_load(server.target, load, trial_seed=1, folder=tmp_path, client=client, ramp=Ramp(1, 16, 2.0))
    assert placed.knee is not None and placed.load.levels == [placed.knee.level.value]
    assert placed.knee.level.value in (4, 8)
    assert len(placed.reports) >= 4
