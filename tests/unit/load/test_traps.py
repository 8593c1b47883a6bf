"""One test for every trap that a streaming client can fall into."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from autotune.load.events import refusal_in
from autotune.load.measure import measure
from autotune.load.report import LevelReport
from autotune.spec.study import LoadSpec, WarmupSpec, WindowSpec

SPEC = LoadSpec(
    input_tokens=8, output_tokens=6, levels=[2], warmup=WarmupSpec(requests=2, max_duration=10.0),
    window=WindowSpec(duration=0.2, requests=12, max_duration=30.0), request_timeout=20.0,
)  # fmt: skip


@dataclass
class Seen:
    level: LevelReport
    rows: dict[str, np.ndarray]

    def value(self, key: str) -> float:
        found = self.level.estimate(key)
        assert found is not None, (key, self.level)
        return found.value

    @property
    def complaints(self) -> list[str]:
        """Why the level is invalid, but for lateness: the host of the tests may be busy."""
        return [reason for reason in self.level.invalid if "late" not in reason]

    @property
    def ended(self) -> np.ndarray:
        return self.rows["status"] == 0


@pytest.fixture
def play(start_server, client, tmp_path):
    """Run a script and return what the client made of it."""

    async def run(script, spec: LoadSpec = SPEC, **options: float) -> Seen:
        server = await start_server(script, **options)
        (level,) = (await measure(server.target, spec, trial_seed=1, folder=Path(tmp_path), client=client)).levels
        data = np.load(level.samples)
        rows = {str(name): data["rows"][:, number] for number, name in enumerate(data["fields"])}
        return Seen(level, rows)

    return run


async def test_an_empty_first_chunk_is_no_token(play, pieces):
    async def script(server, request, reply):
        await reply.head()
        await reply.body(pieces.chunk(""))
        await asyncio.sleep(0.08)
        for _ in range(request["max_tokens"]):
            await reply.body(pieces.chunk(" a"))
        await reply.body(pieces.usage(8, request["max_tokens"]) + pieces.done)
        await reply.end()

    seen = await play(script)
    assert seen.value("ttft_p50_ms") >= 80
    assert (seen.rows["choice"] < seen.rows["first"])[seen.ended].all()
    assert seen.complaints == []


async def test_a_role_chunk_is_no_token(play, pieces):
    async def script(server, request, reply):
        await reply.head()
        await reply.body(pieces.chunk("", chat=True, role="assistant"))
        await asyncio.sleep(0.08)
        for _ in range(request["max_tokens"]):
            await reply.body(pieces.chunk(" a", chat=True))
        await reply.body(pieces.usage(server.count_prompt(request), request["max_tokens"]) + pieces.done)
        await reply.end()

    seen = await play(script, SPEC.model_copy(update={"api": "chat", "input_tokens": 20}))
    assert seen.value("ttft_p50_ms") >= 80
    assert seen.complaints == []
    assert (seen.rows["events"] == 6)[seen.ended].all()


async def test_reasoning_is_a_token_but_not_visible(play, pieces):
    async def script(server, request, reply):
        await reply.head()
        await reply.body(pieces.chunk("", chat=True, role="assistant"))
        for number in range(request["max_tokens"]):
            visible = number >= 4
            if number == 4:
                await asyncio.sleep(0.05)
            extra = {} if visible else {"reasoning_content": "hm"}
            await reply.body(pieces.chunk("yes" if visible else "", chat=True, **extra))
        await reply.body(pieces.usage(server.count_prompt(request), request["max_tokens"]) + pieces.done)
        await reply.end()

    seen = await play(script, SPEC.model_copy(update={"api": "chat", "input_tokens": 20}))
    assert (seen.rows["events"] == 6)[seen.ended].all()
    wait = (seen.rows["visible"] - seen.rows["first"])[seen.ended]
    assert wait.min() > 0.04


async def test_tool_calls_are_tokens(play, pieces):
    async def script(server, request, reply):
        await reply.head()
        for _ in range(request["max_tokens"]):
            call = [{"index": 0, "function": {"arguments": "{}"}}]
            await reply.body(pieces.chunk("", chat=True, tool_calls=call))
        await reply.body(pieces.usage(server.count_prompt(request), request["max_tokens"]) + pieces.done)
        await reply.end()

    seen = await play(script, SPEC.model_copy(update={"api": "chat", "input_tokens": 20}))
    assert (seen.rows["events"] == 6)[seen.ended].all()
    assert not np.isnan(seen.rows["first"][seen.ended]).any()


async def test_split_utf8_and_split_events(play, pieces):
    """Events cut at every possible byte, in the middle of a character and of the separator too."""

    async def script(server, request, reply):
        await reply.head()
        events = b"".join(
            b"data: " + json.dumps({"choices": [{"text": "é漢🙂"}]}, ensure_ascii=False).encode() + b"\n\n"
            for _ in range(request["max_tokens"])
        )
        events += pieces.usage(8, request["max_tokens"]) + pieces.done
        for start in range(0, len(events), 7):
            await reply.body(events[start : start + 7])
            if start % 70 == 0:
                await asyncio.sleep(0)
        await reply.end()

    seen = await play(script)
    assert (seen.rows["events"] == 6)[seen.ended].all()
    assert (seen.rows["completion_tokens"] == 6)[seen.ended].all()
    assert seen.complaints == []


async def test_separators_with_carriage_returns_comments_and_no_space(play, pieces):
    async def script(server, request, reply):
        await reply.head()
        await reply.body(b": ping\r\n\r\n")
        for _ in range(request["max_tokens"]):
            await reply.body(b'data:{"choices": [{"text": "a"}]}\r\n\r\n')
            await reply.body(b": ping\r\n\r\n")
        await reply.body((pieces.usage(8, request["max_tokens"]) + pieces.done).replace(b"\n\n", b"\r\n\r\n"))
        await reply.end()

    seen = await play(script)
    assert (seen.rows["events"] == 6)[seen.ended].all()
    assert seen.complaints == []


async def test_the_usage_chunk_does_not_move_the_end(play, pieces):
    async def script(server, request, reply):
        await reply.head()
        for _ in range(request["max_tokens"]):
            await reply.body(pieces.chunk(" a"))
        await asyncio.sleep(0.08)
        await reply.body(pieces.usage(8, request["max_tokens"]))
        await asyncio.sleep(0.02)
        await reply.body(pieces.done)
        await reply.end()

    seen = await play(script)
    whole = (seen.rows["end"] - seen.rows["sent"])[seen.ended]
    assert seen.value("e2e_mean_ms") < whole.max() * 1e3 - 90
    assert (seen.rows["end"] - seen.rows["last"])[seen.ended].min() > 0.09
    assert (seen.rows["events"] == 6)[seen.ended].all()


async def test_answers_of_one_token_have_no_tpot(play, pieces):
    seen = await play(pieces.plain, SPEC.model_copy(update={"output_tokens": 1}), ttft=0.02)
    assert seen.value("ttft_p50_ms") >= 20
    assert seen.level.estimate("tpot_mean_ms") is None
    assert seen.level.estimate("itl_mean_ms") is None
    assert seen.complaints == []
    assert seen.value("output_throughput") == pytest.approx(seen.value("request_throughput"), rel=0.1)


async def test_several_tokens_in_a_chunk(play, pieces):
    """Speculative decoding: six tokens come in three chunks."""

    async def script(server, request, reply):
        await reply.head()
        for _ in range(3):
            await asyncio.sleep(0.01)
            await reply.body(pieces.chunk(" a b"))
        await reply.body(pieces.usage(8, 6) + pieces.done)
        await reply.end()

    seen = await play(script)
    assert seen.value("tokens_per_chunk") == 2
    assert seen.value("tpot_mean_ms") == pytest.approx(2 * seen.value("itl_mean_ms") / 5, rel=0.25)
    assert seen.value("output_throughput") == pytest.approx(6 * seen.value("request_throughput"), rel=0.3)


async def test_an_error_in_mid_stream_is_a_failed_request(play, pieces):
    async def script(server, request, reply):
        if len(server.requests) % 4:
            await pieces.plain(server, request, reply)
            return
        await reply.head()
        await reply.body(pieces.chunk(" a"))
        await reply.body(b'data: {"error": {"message": "CUDA error", "code": 500}}\n\n' + pieces.done)
        await reply.end()

    seen = await play(script)
    assert 0.05 < seen.value("error_share") < 0.6
    assert (seen.rows["status"] == 1).any()


async def test_a_connection_cut_in_mid_stream_is_a_failed_request(play, pieces):
    async def script(server, request, reply):
        if len(server.requests) % 4:
            await pieces.plain(server, request, reply)
            return
        await reply.head()
        await reply.body(pieces.chunk(" a"))
        reply.close_after = True

    seen = await play(script)
    assert 0.05 < seen.value("error_share") < 0.6
    assert seen.level.requests >= 12


@pytest.mark.parametrize("status", ["429 Too Many Requests", "503 Service Unavailable", "400 Bad Request"])
async def test_an_error_status_is_a_failed_request_and_no_latency(play, pieces, status):
    async def script(server, request, reply):
        if len(server.requests) % 3:
            await pieces.plain(server, request, reply)
            return
        await reply.plain(status, b'{"error": {"message": "busy"}}')

    seen = await play(script, ttft=0.03)
    assert seen.value("error_share") > 0.1
    assert seen.value("ttft_p50_ms") >= 30
    assert seen.level.errors > 0
    assert f"failed requests: {seen.level.errors} x HTTP {status[:3]}: busy" in seen.level.notes


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("no capacity", "no capacity"),
        ('{"error":{"message":"At most 2 image(s)","type":"BadRequestError","code":400}}', "At most 2 image(s)"),
        ('{"object":"error","message":"too long"}', "too long"),
        ('{"detail":"Not Found"}', "Not Found"),
        ('["odd"]', '["odd"]'),
        ("{}", "{}"),
    ],
)
def test_a_refusal_is_told_in_the_servers_own_words(body, said):
    assert refusal_in(body) == said


async def test_nothing_but_errors_stops_the_level_and_says_why(play):
    async def script(server, request, reply):
        await reply.plain("503 Service Unavailable", b'{"detail": "no capacity"}')

    spec = SPEC.model_copy(update={"window": WindowSpec(duration=30)})
    seen = await play(script, spec)
    assert seen.level.stopped == "every request fails: HTTP 503: no capacity"


async def test_a_failing_server_is_not_flooded(play):
    arrived = []

    async def script(server, request, reply):
        arrived.append(asyncio.get_running_loop().time())
        await reply.plain("503 Service Unavailable")

    await play(script)
    assert len(arrived) / max(arrived[-1] - arrived[0], 0.1) < 60


async def test_keep_alive_closed_by_the_server_is_no_error(play, pieces):
    """The server announces nothing and closes after every answer."""

    async def script(server, request, reply):
        await pieces.plain(server, request, reply)
        reply.close_after = True

    seen = await play(script)
    assert seen.level.requests >= 12
    assert seen.value("error_share") == 0
    assert seen.complaints == []


async def test_an_announced_close_is_no_error(play, pieces):
    async def script(server, request, reply):
        await reply.head(extra="connection: close\r\n")
        for _ in range(request["max_tokens"]):
            await reply.body(pieces.chunk(" a"))
        await reply.body(pieces.usage(8, request["max_tokens"]) + pieces.done)
        await reply.end()
        reply.close_after = True

    seen = await play(script)
    assert seen.level.requests >= 12
    assert seen.value("error_share") == 0


async def test_a_body_that_ends_with_the_connection(play, pieces):
    async def script(server, request, reply):
        await reply.raw(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n")
        for _ in range(request["max_tokens"]):
            await reply.raw(pieces.chunk(" a"))
        await reply.raw(pieces.usage(8, request["max_tokens"]) + pieces.done)
        reply.close_after = True

    seen = await play(script)
    assert seen.level.requests >= 12
    assert seen.value("error_share") == 0


async def test_garbage_is_a_failed_request(play):
    async def script(server, request, reply):
        await reply.raw(b"\x00\x01 this is no HTTP\r\n\r\n")
        reply.close_after = True

    seen = await play(script)
    assert seen.level.stopped is not None and "not HTTP" in seen.level.stopped


async def test_broken_json_is_a_failed_request(play, pieces):
    async def script(server, request, reply):
        await reply.head()
        await reply.body(b'data: {"choices": [{"te\n\n' + pieces.done)
        await reply.end()

    seen = await play(script)
    assert seen.level.stopped is not None and "not JSON" in seen.level.stopped


async def test_an_answer_that_is_no_stream_is_a_failed_request(play):
    async def script(server, request, reply):
        await reply.plain("200 OK", json.dumps({"choices": [{"text": "all at once"}]}).encode())

    seen = await play(script)
    assert seen.level.stopped is not None and "does the server stream?" in seen.level.stopped


async def test_a_slow_reader_of_the_request(play, pieces):
    """A server that takes long to read a large prompt: the wait is part of the TTFT, nothing is lost."""

    async def script(server, request, reply):
        await asyncio.sleep(0.05)
        await pieces.plain(server, request, reply)

    seen = await play(script, SPEC.model_copy(update={"input_tokens": 60_000}), ttft=0.01)
    assert seen.value("ttft_p50_ms") >= 60
    assert (seen.rows["prompt_tokens"] == 60_000)[seen.ended].all()


async def test_a_request_without_an_end_times_out(play, pieces):
    async def script(server, request, reply):
        if len(server.requests) > 4:
            await reply.head()
            await reply.body(pieces.chunk(" a"))
            await asyncio.sleep(30)
        await pieces.plain(server, request, reply)

    spec = SPEC.model_copy(update={"request_timeout": 0.5, "window": WindowSpec(duration=2.5)})
    seen = await play(script, spec)
    assert seen.level.errors >= 2 or seen.level.stopped is not None
    assert (seen.rows["status"] == 1).any()


async def test_wrong_answer_lengths_are_invalid(play, pieces):
    async def script(server, request, reply):
        await reply.head()
        await reply.body(pieces.chunk(" a") * 3 + pieces.usage(8, 3) + pieces.done)
        await reply.end()

    seen = await play(script)
    assert any("another length than planned" in reason for reason in seen.level.invalid)


async def test_no_usage_is_invalid(play, pieces):
    async def script(server, request, reply):
        await reply.head()
        await reply.body(pieces.chunk(" a") * 6 + pieces.done)
        await reply.end()

    seen = await play(script)
    assert any("no usage" in reason for reason in seen.level.invalid)
    assert (seen.rows["events"] == 6)[seen.ended].all()


async def test_wrong_prompt_lengths_are_invalid(play, pieces):
    async def script(server, request, reply):
        await reply.head()
        await reply.body(pieces.chunk(" a") * 6 + pieces.usage(4, 6) + pieces.done)
        await reply.end()

    seen = await play(script)
    assert any("prompts have another length" in reason for reason in seen.level.invalid)
