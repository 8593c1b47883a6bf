"""Images in prompts: what they are, that they are fresh, and that the plan says who has them."""

from __future__ import annotations

import base64
import struct
import zlib

import numpy as np
import pytest
from pydantic import ValidationError
from typer import Typer
from typer.testing import CliRunner

from autotune.cli import bench as command
from autotune.errors import SpecError
from autotune.load.measure import measure
from autotune.load.pictures import random_png
from autotune.load.plan import plan_hash, planned_turns
from autotune.load.report import Level
from autotune.simulator.completions import read_body
from autotune.simulator.tokens import Vocabulary
from autotune.spec.images import ImagesSpec
from autotune.spec.study import LoadSpec, WarmupSpec, WindowSpec

IMAGES = ImagesSpec(count=2, width=64, height=50, share=0.5)
LOAD = LoadSpec(
    input_tokens=30, output_tokens=6, api="chat", images=IMAGES, levels=[4], warmup=WarmupSpec(requests=4),
    window=WindowSpec(requests=40),
)  # fmt: skip


def pixels(png: bytes) -> np.ndarray:
    """Decodes what `random_png` writes, by the PNG specification (filters 0 and 2); checks every chunk's sum."""
    assert png[:8] == b"\x89PNG\r\n\x1a\n"
    at, parts = 8, {}
    while at < len(png):
        (size,) = struct.unpack(">I", png[at : at + 4])
        kind, data = png[at + 4 : at + 8], png[at + 8 : at + 8 + size]
        assert struct.unpack(">I", png[at + 8 + size : at + 12 + size]) == (zlib.crc32(kind + data),)
        parts[kind] = data
        at += 12 + size
    width, height, depth, colour, *rest = struct.unpack(">IIBBBBB", parts[b"IHDR"])
    assert (depth, colour, rest) == (8, 2, [0, 0, 0])
    raw = np.frombuffer(zlib.decompress(parts[b"IDAT"]), np.uint8).reshape(height, 1 + width * 3)
    image = np.zeros((height, width * 3), np.uint8)
    for line in range(height):
        assert raw[line, 0] in (0, 2)
        image[line] = raw[line, 1:] + (image[line - 1] if raw[line, 0] == 2 else 0)
    return image.reshape(height, width, 3)


@pytest.mark.parametrize(("width", "height"), [(16, 16), (65, 17), (256, 128)])
def test_an_image_is_a_png_of_its_size_with_content(width, height):
    generator = np.random.default_rng(1)
    first, second = pixels(random_png(generator, width, height)), pixels(random_png(generator, width, height))
    assert first.shape == (height, width, 3)
    assert (first != second).mean() > 0.9
    assert first.std() > 50


def test_a_megapixel_has_the_size_of_a_photograph():
    assert 200_000 < len(random_png(np.random.default_rng(1), 1024, 1024)) < 300_000


def images_of(request: dict) -> list[bytes]:
    content = request["messages"][0]["content"]
    if isinstance(content, str):
        return []
    assert content[0]["type"] == "text"
    urls = [part["image_url"]["url"] for part in content[1:]]
    assert all(url.startswith("data:image/png;base64,") for url in urls)
    return [base64.b64decode(url.partition(",")[2], validate=True) for url in urls]


async def test_images_are_sent_fresh_and_the_plan_stays(start_server, client, tmp_path):
    server = await start_server()
    reports = []
    for seed in (1, 2):
        found = await measure(server.target, LOAD, trial_seed=seed, folder=tmp_path / str(seed), client=client)
        reports.append(found.levels[0])
    assert [level.invalid for level in reports] == [(), ()]
    assert reports[0].plan_hash == reports[1].plan_hash
    assert reports[0].content_hash != reports[1].content_hash
    sent = [images_of(request) for request in server.requests if request.get("stream")]
    assert {len(item) for item in sent} == {0, 2}
    assert 0.25 < sum(map(bool, sent)) / len(sent) < 0.75
    every = [image for item in sent for image in item]
    assert len(set(every)) == len(every)
    assert pixels(every[0]).shape == (50, 64, 3)


def test_who_has_images_is_part_of_the_plan_and_changes_nothing_else():
    plain = LOAD.model_copy(update={"images": None})
    level = Level("closed", 4)
    with_images = [turn for turn, _ in zip(planned_turns(LOAD, level, 0), range(300), strict=False)]
    without = [turn for turn, _ in zip(planned_turns(plain, level, 0), range(300), strict=False)]
    assert [turn.input_tokens for turn in with_images] == [turn.input_tokens for turn in without]
    assert 100 < sum(turn.images == 2 for turn in with_images) < 200
    larger = LOAD.model_copy(update={"images": ImagesSpec(count=2, width=128, height=50, share=0.5)})
    hashes = {plan_hash(load, level, planned_turns(load, level, 0)) for load in (LOAD, plain, larger)}
    assert len(hashes) == 3


def test_the_simulator_counts_patches_and_knows_equal_images():
    def prompt(png: bytes, prefix: str = "data:image/png;base64,") -> list[int]:
        url = prefix + base64.b64encode(png).decode()
        content = [{"type": "text", "text": "a b"}, {"type": "image_url", "image_url": {"url": url}}]
        body = {"messages": [{"role": "user", "content": content}], "max_tokens": 1}
        limits = {"max_model_len": 4096, "max_logprobs": 20, "early_stop": False}
        return read_body(body, chat=True, vocabulary=Vocabulary(32000), **limits)[0].prompt

    generator = np.random.default_rng(1)
    first, second = random_png(generator, 56, 57), random_png(generator, 56, 57)
    small = random_png(generator, 28, 28)
    assert len(prompt(first)) - len(prompt(small)) == 2 * 3 - 1
    assert prompt(first) == prompt(first) != prompt(second)
    for bad in (lambda: prompt(b"GIF89a"), lambda: prompt(first, "https://example.org/")):
        with pytest.raises(Exception, match=r"cannot identify image|data URLs only"):
            bad()


@pytest.mark.parametrize(
    "changes", [{"api": "completions"}, {"turns": 3}, {"images": {"count": 0}}, {"images": {"width": 9000}}]
)
def test_bad_loads_with_images(changes):
    with pytest.raises(ValidationError, match="images"):
        LoadSpec.model_validate({"api": "chat", "images": {"count": 1}} | changes)


@pytest.mark.parametrize("arguments", [["--images", "1:64x64"], ["--images", "2", "--api", "chat"]])
def test_bad_options(arguments):
    app = Typer()
    app.command()(command.bench)
    result = CliRunner().invoke(app, ["http://127.0.0.1:1", *arguments])
    assert isinstance(result.exception, SpecError)
    assert "--images" in str(result.exception)
