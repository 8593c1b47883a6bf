"""A scripted server in the test's own loop; the client under test runs in its own process, as always."""

from __future__ import annotations

import asyncio
import inspect
import json
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
import pytest_asyncio

from autotune.load.client import LoadClient
from autotune.load.enginewatch import MetricsSource, metrics_of
from autotune.load.report import Target

HERE = Path(__file__).parent
VOCABULARY = 32000


def chunk(text: str, *, chat: bool = False, finish: str | None = None, **delta: object) -> bytes:
    """One vLLM-shaped event."""
    if chat:
        choice: dict[str, object] = {"index": 0, "delta": {"content": text} | delta, "finish_reason": finish}
    else:
        choice = {"index": 0, "text": text, "logprobs": None, "finish_reason": finish}
    body = {"id": "cmpl-1", "object": "text_completion", "created": 1, "model": "mock", "choices": [choice]}
    return b"data: " + json.dumps(body).encode() + b"\n\n"


def usage(prompt: int, completion: int) -> bytes:
    numbers = {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}
    return b"data: " + json.dumps({"id": "cmpl-1", "choices": [], "usage": numbers}).encode() + b"\n\n"


DONE = b"data: [DONE]\n\n"


class Reply:
    """What a script writes to: chunked HTTP, or raw bytes."""

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self.writer = writer
        self.close_after = False

    async def raw(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def head(self, status: str = "200 OK", extra: str = "") -> None:
        kind = "text/event-stream; charset=utf-8"
        await self.raw(
            f"HTTP/1.1 {status}\r\ncontent-type: {kind}\r\n{extra}transfer-encoding: chunked\r\n\r\n".encode()
        )

    async def body(self, data: bytes) -> None:
        await self.raw(f"{len(data):x}\r\n".encode() + data + b"\r\n")

    async def end(self) -> None:
        await self.raw(b"0\r\n\r\n")

    async def plain(self, status: str, body: bytes = b"{}", kind: str = "application/json", extra: str = "") -> None:
        head = f"HTTP/1.1 {status}\r\ncontent-type: {kind}\r\n{extra}content-length: {len(body)}\r\n\r\n"
        await self.raw(head.encode() + body)


Script = Callable[["MockServer", dict, Reply], Awaitable[None]]


async def plain_script(server: MockServer, request: dict, reply: Reply) -> None:
    """First token after `server.ttft`, then one every `server.step` seconds."""
    await reply.head()
    tokens = request["max_tokens"]
    due = time.monotonic() + server.ttft
    for number in range(tokens):
        await asyncio.sleep(max(0.0, due - time.monotonic()))
        due += server.step
        last = number == tokens - 1
        await reply.body(chunk(" the", chat="messages" in request, finish="length" if last else None))
    server.generated += tokens
    await reply.body(usage(server.count_prompt(request), tokens))
    await reply.body(DONE)
    await reply.end()


class MockServer:
    def __init__(self, script: Script = plain_script, *, ttft: float = 0.02, step: float = 0.002) -> None:
        self.script, self.ttft, self.step = script, ttft, step
        self.requests: list[dict] = []
        self.arrived: list[float] = []
        self.headers: list[str] = []
        self.connections = 0
        self.active = 0
        self.most_active = 0
        self.generated = 0
        self.cancelled = 0
        self.server: asyncio.Server | None = None
        self.port = 0
        self.tasks: set[asyncio.Task] = set()
        self.foreign = 0
        self.tls: ssl.SSLContext | None = None

    def count_prompt(self, request: dict) -> int:
        if "messages" in request:
            content = request["messages"][0]["content"]
            parts = content if isinstance(content, list) else [{"type": "text", "text": content}]
            return 7 + sum(len(part["text"].split()) if part["type"] == "text" else 256 for part in parts)
        prompt = request["prompt"]
        return len(prompt) if isinstance(prompt, list) else len(prompt.split())

    @property
    def target(self) -> Target:
        scheme = "https" if self.tls else "http"
        return Target(f"{scheme}://127.0.0.1:{self.port}", "mock", api_key="secret", vocabulary=VOCABULARY)

    def metrics_source(self) -> MetricsSource:
        return metrics_of(self.target)

    async def start(self) -> None:
        self.server = await asyncio.start_server(self._serve, "127.0.0.1", self.port, backlog=1024, ssl=self.tls)
        self.port = self.server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        if self.server is not None:
            self.server.close()
            for task in list(self.tasks):
                task.cancel()
            await asyncio.gather(*self.tasks, return_exceptions=True)
            self.server = None

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until the server sees it so; the test's own time limit bounds it."""
        while not condition():  # noqa: ASYNC110 - the condition is about sockets, nothing sets an event
            await asyncio.sleep(0.01)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        task = asyncio.current_task()
        assert task is not None
        self.tasks.add(task)
        try:
            while await self._one(reader, writer):
                pass
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            self.cancelled += 1
        finally:
            self.tasks.discard(task)
            writer.close()

    async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
        except asyncio.IncompleteReadError:
            return False
        size = next((int(line.split(":")[1]) for line in head.split("\r\n") if line.lower().startswith("content-l")), 0)
        body = await reader.readexactly(size)
        reply = Reply(writer)
        route = head.split(" ")[1]
        if not route.endswith("/completions"):
            return await self.other(route, body, reply)
        self.arrived.append(time.monotonic())
        self.headers.append(head)
        request = json.loads(body)
        self.requests.append(request)
        self.active += 1
        self.most_active = max(self.most_active, self.active)
        try:
            if not request.get("stream"):
                numbers = {"prompt_tokens": self.count_prompt(request), "completion_tokens": 1}
                await reply.plain("200 OK", json.dumps({"choices": [{"text": "a"}], "usage": numbers}).encode())
                return True
            await self.script(self, request, reply)
        finally:
            self.active -= 1
        return not reply.close_after

    async def other(self, route: str, body: bytes, reply: Reply) -> bool:
        if route == "/v1/models":
            await reply.plain("200 OK", b'{"data": [{"id": "mock", "max_model_len": 4096}]}')
        elif route == "/metrics":
            text = (
                f'vllm:generation_tokens_total{{model_name="mock"}} {self.generated}\n'
                f'vllm:num_requests_running{{model_name="mock"}} {self.active + self.foreign}\n'
            )
            await reply.plain("200 OK", text.encode(), "text/plain")
        else:
            await reply.plain("404 Not Found", b'{"detail": "Not Found"}')
        return True


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """All tests of this folder share one loop, because the client process's connection belongs to it."""
    for item in items:
        if item.path.parent == HERE and inspect.iscoroutinefunction(getattr(item, "function", None)):
            item.add_marker(pytest.mark.asyncio(loop_scope="session"), append=False)


@pytest_asyncio.fixture(loop_scope="session")
async def start_server() -> AsyncIterator[Callable[..., Awaitable[MockServer]]]:
    """Start scripted servers; they are stopped after the test."""
    servers: list[MockServer] = []

    async def start(
        script: Script = plain_script, *, tls: ssl.SSLContext | None = None, **options: float
    ) -> MockServer:
        server = MockServer(script, **options)
        server.tls = tls
        await server.start()
        servers.append(server)
        return server

    yield start
    for server in servers:
        await server.stop()


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def client() -> AsyncIterator[LoadClient]:
    """One client process for all tests, as for all trials of a study."""
    async with LoadClient(1) as running:
        yield running


class Pieces:
    """The building blocks of scripts, for tests that write their own."""

    chunk = staticmethod(chunk)
    usage = staticmethod(usage)
    done = DONE
    plain = staticmethod(plain_script)
    server = MockServer


@pytest.fixture
def pieces() -> type[Pieces]:
    return Pieces
