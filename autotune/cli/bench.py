"""`autotune bench`: measure a server that is already running."""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
import tempfile
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Literal, cast

import typer
from pydantic import ValidationError
from rich.table import Table

from autotune.cli.terminal import terminal
from autotune.errors import EnvironmentFault, SpecError
from autotune.load.bench import BenchPlan, BenchReport, first_model
from autotune.load.bench import bench as run_bench
from autotune.load.early import Progress
from autotune.load.knee import Ramp
from autotune.load.page import COLUMNS, cell, headline, remarks, render_html
from autotune.load.report import LevelReport, Target
from autotune.load.vllm_definitions import read_records, vllm_figures
from autotune.spec.study import ImagesSpec, LoadSpec, SloSpec, WarmupSpec, WindowSpec
from autotune.spec.units import parse_duration

UNBOUNDED = 86_400.0
"""Seconds; a run of a given number of requests ends with the last of them."""


def parse_slo(text: str) -> SloSpec:
    """Read ``ttft:p95:500ms``.

    Raises:
        SpecError: it is no SLO.
    """
    hint = "write METRIC:PERCENTILE:LIMIT, such as ttft:p95:500ms; metrics: ttft, tpot, itl, e2e"
    parts = text.split(":")
    if len(parts) != 3 or not parts[1].startswith("p"):
        raise SpecError(f"{text!r} is no SLO", key="--slo", hint=hint)
    try:
        return SloSpec.model_validate({"metric": parts[0], "percentile": parts[1][1:], "limit": parts[2]})
    except ValidationError:
        raise SpecError(f"{text!r} is no SLO", key="--slo", hint=hint) from None


def _numbers(text: str, key: str) -> list[float]:
    try:
        values = [float(item) for item in text.split(",")]
    except ValueError:
        values = []
    if not values or min(values) <= 0:
        raise SpecError(f"{text!r} is no list of numbers", key=key, hint="write numbers above 0, such as 1,4,16")
    return values


def _length(text: str, key: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise SpecError(f"{text!r} is no length", key=key, hint="write a number of tokens, such as 512")
    return int(text)


def _images(text: str | None, api: str) -> ImagesSpec | None:
    if text is None:
        return None
    hint = "write COUNT:WIDTHxHEIGHT, such as 1:1024x768; 16 to 8192 pixels, up to 64 images"
    match = re.fullmatch(r"(\d+):(\d+)x(\d+)", text)
    if match is None:
        raise SpecError(f"{text!r} names no images", key="--images", hint=hint)
    if api != "chat":
        raise SpecError("images are sent in chat messages only", key="--images", hint="add --api chat")
    try:
        return ImagesSpec(count=int(match[1]), width=int(match[2]), height=int(match[3]))
    except ValidationError:
        raise SpecError(f"{text!r} names no images", key="--images", hint=hint) from None


def _duration(text: str, key: str) -> float:
    try:
        return float(cast(float, parse_duration(text if not text.replace(".", "").isdigit() else f"{text}s")))
    except ValueError as error:
        raise SpecError(str(error), key=key) from None


def _read_load(
    levels: str, rate: str | None, arrivals: str, input_tokens: str, output_tokens: str, duration: str, api: str,
    processes: int, requests: int | None, warmup: bool, images: ImagesSpec | None,
) -> LoadSpec:  # fmt: skip
    seconds = _duration(duration, "--duration")
    values = _numbers(rate, "--rate") if rate is not None else _numbers(levels, "--levels")
    return LoadSpec(
        input_tokens=_length(input_tokens, "--input-tokens"),
        output_tokens=_length(output_tokens, "--output-tokens"),
        arrivals=cast(Literal["constant", "poisson", "gamma", "bursts"], arrivals) if rate is not None else "closed",
        levels=values,
        api=cast(Literal["completions", "chat"], api),
        images=images,
        warmup=WarmupSpec() if warmup else WarmupSpec(requests=0),
        window=WindowSpec(
            duration=seconds, requests=requests, max_duration=max(300.0, 5 * seconds) if warmup else UNBOUNDED
        ),
        client_processes=processes,
        stop_hopeless=False,
    )


def bench(
    url: Annotated[str, typer.Argument(help="Base URL of the server, such as http://127.0.0.1:8000.")],
    model: Annotated[str | None, typer.Option(help="Model to ask for. Default: the first one that it lists.")] = None,
    levels: Annotated[str, typer.Option(help="Concurrencies, such as 1,4,16.")] = "16",
    rate: Annotated[str | None, typer.Option(help="Rates in requests a second (open loop) instead.")] = None,
    arrivals: Annotated[str, typer.Option(help="With --rate: poisson, constant, gamma or bursts.")] = "poisson",
    input_tokens: Annotated[str, typer.Option(help="Prompt length in tokens.")] = "512",
    output_tokens: Annotated[str, typer.Option(help="Answer length in tokens.")] = "128",
    duration: Annotated[str, typer.Option(help="Measured window of each level.")] = "20s",
    requests: Annotated[int | None, typer.Option(help="At least so many requests in the window.")] = None,
    ramp: Annotated[str | None, typer.Option(help="Climb START:STOP:FACTOR and find the saturation knee.")] = None,
    slo: Annotated[list[str] | None, typer.Option(help="METRIC:PERCENTILE:LIMIT, such as ttft:p95:500ms.")] = None,
    capacity: Annotated[
        bool, typer.Option("--capacity", help="Bisect for the highest load that holds the SLOs.")
    ] = False,
    images: Annotated[
        str | None,
        typer.Option(help="COUNT:WIDTHxHEIGHT, such as 1:1024x768, in every request; needs --api chat."),
    ] = None,
    api: Annotated[str, typer.Option(help="Route: completions (exact lengths by token ids) or chat.")] = "completions",
    processes: Annotated[int, typer.Option(min=1, max=64, help="Client processes.")] = 1,
    vocabulary: Annotated[int, typer.Option(min=0, help="Size of the vocabulary. Default: ask the server.")] = 0,
    api_key_env: Annotated[str, typer.Option(help="Environment variable with the API key.")] = "OPENAI_API_KEY",
    ca: Annotated[str, typer.Option(help="For https: PEM file with the authority, or the certificate itself.")] = "",
    insecure: Annotated[bool, typer.Option("--insecure", help="For https: believe any certificate.")] = False,
    definitions: Annotated[
        str, typer.Option(help="autotune, or vllm: as `vllm bench serve` defines them.")
    ] = "autotune",
    seed: Annotated[int | None, typer.Option(help="Content of the prompts. Default: fresh in every run.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="For machines.")] = False,
    html: Annotated[Path | None, typer.Option(help="Write the curve and the table to this file.")] = None,
) -> None:
    """Measure a running OpenAI-compatible server: throughput, TTFT, TPOT, ITL and latency with intervals."""
    if definitions not in ("autotune", "vllm"):
        raise SpecError(f"{definitions!r} is no set of definitions", key="--definitions", hint="autotune or vllm")
    if arrivals not in ("poisson", "constant", "gamma", "bursts") or api not in ("completions", "chat"):
        raise SpecError(
            "unknown --arrivals or --api", hint="arrivals: poisson, constant, gamma, bursts; api: completions, chat"
        )
    slos = tuple(parse_slo(item) for item in slo or [])
    if capacity and not slos:
        raise SpecError("--capacity needs a limit", key="--slo", hint="such as --slo ttft:p95:500ms")
    as_vllm = definitions == "vllm"
    load = _read_load(
        levels, rate, arrivals, input_tokens, output_tokens, duration, api, processes, None if as_vllm else requests,
        not as_vllm, _images(images, api),
    )  # fmt: skip
    if not url.startswith(("http://", "https://")):
        hint = "begin it with http:// or https://, such as http://127.0.0.1:8000"
        raise SpecError(f"{url} is no URL", key="URL", hint=hint)
    if (ca or insecure) and not url.startswith("https://"):
        raise SpecError(f"{url} does not use TLS", key="--ca" if ca else "--insecure", hint="it is for https:// only")
    target = Target(url.rstrip("/"), model or "", os.environ.get(api_key_env, ""), 1.0, vocabulary, ca, insecure)
    with tempfile.TemporaryDirectory(prefix="autotune-bench-") as folder:
        plan = BenchPlan(
            load, slos, Ramp.parse(ramp) if ramp else None, capacity,
            seed if seed is not None else time.time_ns() % 1_000_000_007, (requests or 200) if as_vllm else None,
            Path(folder),
        )  # fmt: skip
        report = asyncio.run(_run(target, plan))
        _show(report, as_json=as_json, as_vllm=as_vllm)
    if html is not None:
        html.write_text(render_html(report))
    if not any(found.value > 0 for level in report.levels if (found := level.estimate("output_throughput"))):
        told = "; ".join(f"{level.level}: {remarks(level)}" for level in report.levels if remarks(level))
        raise EnvironmentFault(f"{report.url} answered nothing that could be measured: {told or 'no request ended'}")


async def _run(target: Target, plan: BenchPlan) -> BenchReport:
    if not target.model:
        target = replace(target, model=await first_model(target))
    console = terminal(stderr=True)
    if not sys.stderr.isatty():
        return await run_bench(target, plan)
    with console.status("connecting") as status:

        def seen(progress: Progress) -> None:
            status.update(str(progress))

        return await run_bench(target, plan, on_progress=seen)


def as_plain(level: LevelReport, *, as_vllm: bool) -> dict[str, object]:
    """A level for machines."""
    plain: dict[str, object] = {
        "level": level.level.value, "kind": level.level.kind, "valid": not level.invalid,
        "invalid": list(level.invalid), "notes": list(level.notes),
        "stopped": level.stopped, "requests": level.requests, "errors": level.errors, "window_s": level.window_s,
        "warmup_s": level.warmup_s, "plan_hash": level.plan_hash, "content_hash": level.content_hash,
        "engine": dict(level.engine),
    }  # fmt: skip
    if as_vllm and level.samples is not None:
        plain["metrics"] = vllm_figures(read_records(level.samples))
    else:
        plain["metrics"] = {key: asdict(value) for key, value in level.metrics}
    return plain


def _show(report: BenchReport, *, as_json: bool, as_vllm: bool) -> None:
    if as_json:
        body = {
            "url": report.url, "model": report.model, "definitions": "vllm" if as_vllm else "autotune",
            "levels": [as_plain(level, as_vllm=as_vllm) for level in report.levels],
            "knee": asdict(report.knee) if report.knee else None,
            "capacity": report.capacity.value if report.capacity else None,
        }  # fmt: skip
        typer.echo(json.dumps(body, indent=2))
        return
    console = terminal()
    if as_vllm:
        for level in report.levels:
            assert level.samples is not None
            console.print(f"{level.level} by vLLM's definitions", style="bold")
            for name, value in vllm_figures(read_records(level.samples)).items():
                console.print(f"  {name:<24} {value:12.2f}")
        return
    shown = [item for item in COLUMNS if any(level.estimate(item[0]) for level in report.levels)]
    if not shown:
        return
    table = Table(title=f"{report.model} at {report.url}")
    table.add_column("load")
    for _, title in shown:
        table.add_column(title, justify="right")
    for level in report.levels:
        table.add_row(str(level.level), *(cell(level, key) for key, _ in shown))
    console.print(table)
    for level in report.levels:
        if text := remarks(level):
            console.print(f"{level.level}: {text}", style="yellow")
    for line in headline(report):
        console.print(line)
