"""vLLM's HTTP routes over the simulated engine (aiohttp). No decisions: read, submit, write.

A stream's events are framed as HTTP chunks here and written straight to the transport when its step's tokens are due:
one write a stream however many steps are due, and no task wakes for it.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from aiohttp import web

from . import VERSION, handover
from .completions import BadRequest, Generation, ResponseWriter, read_body
from .config import EngineSettings
from .described import sections
from .driver import EngineDead, RealTimeEngine
from .faults import SimulationEnvironment
from .live import reconfigure
from .logs import ProcessLog
from .metrics import exposition
from .tokens import PseudoModel, Vocabulary

_RUN_NOISE = 0.02  # sigma of the logits between two runs of the same server: KL about 0.0002, as measured on vLLM


@dataclass
class ServerState:
    """What the routes share."""

    settings: EngineSettings
    engine: RealTimeEngine
    environment: SimulationEnvironment
    names: tuple[str, ...]
    keys: tuple[str, ...]
    model_path: str
    log: ProcessLog
    log_requests: bool = True
    vocabulary: Vocabulary = field(init=False)
    pseudo: PseudoModel = field(init=False)
    served: int = 0

    def __post_init__(self) -> None:
        self.vocabulary = Vocabulary(self.settings.shape.vocab)
        noise = _RUN_NOISE if self.environment.noise else 0.0
        weights, kv = self.settings.weight_format, self.settings.kv_format
        self.pseudo = PseudoModel(self.settings.shape.vocab, weights, kv, noise, self.environment.seed)
        self._random = random.Random(self.environment.seed)

    def fails(self) -> bool:
        """Whether the fault ``error_rate`` hits this request."""
        return self._random.random() < self.environment.number("error_rate", 0.0)


STATE: web.AppKey[ServerState] = web.AppKey("state", ServerState)


def _error(message: str, status: int, kind: str = "BadRequestError", param: str | None = None) -> web.Response:
    return web.json_response(
        {"error": {"message": message, "type": kind, "param": param, "code": status}}, status=status
    )


@web.middleware
async def _authenticate(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    """vLLM guards /v1 only; everything else is open."""
    state = request.app[STATE]
    if state.keys and request.path.startswith("/v1"):
        given = request.headers.get("Authorization", "")
        if given.removeprefix("Bearer ") not in state.keys or not given.startswith("Bearer "):
            response: web.StreamResponse = web.json_response({"error": "Unauthorized"}, status=401)
            _access(state, request, 401)
            return response
    response = await handler(request)
    _access(state, request, response.status)
    return response


def _access(state: ServerState, request: web.Request, status: int) -> None:
    if state.log_requests:
        peer = request.transport.get_extra_info("peername") if request.transport else None
        where = f"{peer[0]}:{peer[1]}" if peer else "-"
        state.log.web(f'{where} - "{request.method} {request.path} HTTP/1.1" {status}', soon=False)


class _Stream:
    """Tokens of one request on their way to its client: kept until the response has begun, then written."""

    def __init__(self, writer: ResponseWriter, engine: RealTimeEngine, broken: bool) -> None:
        self.first: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.transport: asyncio.WriteTransport | None = None
        self.kept: list[bytes] = []
        self._writer = writer
        self.finish_reason = writer.generation.finish_reason
        self._interval = engine.settings.stream_interval
        self._engine = engine
        self._unsent: list[bytes] = []
        self._broken = broken
        self._pending = 0

    def tokens(self, gain: int, last: bool) -> None:
        """New tokens; called by the engine."""
        self._pending += gain
        started = self.first.done()
        if self._writer.generation.stream and (last or not started or self._pending >= self._interval):
            event = self._writer.event(self._pending, last)
            self._pending = 0
            if last:
                event += self._writer.tail()
            if self._broken:
                event = event.replace(b'"choices":[{', b'"choices":[{{')
            if self.transport is None:
                self.kept.append(event)
            else:
                if not self._unsent:
                    self._engine.to_flush.append(self._flush)
                self._unsent.append(b"%x\r\n%b\r\n" % (len(event), event))
        if not started:
            self.first.set_result(None)
        if last and not self.ended.done():
            self._flush()
            self.ended.set_result(None)

    def _flush(self) -> None:
        if self._unsent and self.transport is not None and not self.transport.is_closing():
            self.transport.write(b"".join(self._unsent))
        self._unsent.clear()

    def fail(self, error: Exception) -> None:
        """The engine has died."""
        for future in (self.first, self.ended):
            if not future.done():
                future.set_exception(error)
                future.exception()  # both are awaited in turn; the second must not be reported as never retrieved


async def _read(request: web.Request, chat: bool) -> list[Generation]:
    state = request.app[STATE]
    try:
        body = await request.json()
    except ValueError as error:
        raise BadRequest(f"Invalid JSON: {error}") from error
    if not isinstance(body, dict):
        raise BadRequest("Input should be a valid dictionary")
    model = body.get("model") or state.names[0]
    if model not in state.names:
        raise BadRequest(f"The model `{model}` does not exist.", 404)
    state.served += 1
    early = state.environment.fault("stop_tokens") and state.served % 2 == 0
    settings = state.settings
    return read_body(
        body,
        chat=chat,
        vocabulary=state.vocabulary,
        max_model_len=settings.max_model_len,
        max_logprobs=settings.max_logprobs,
        early_stop=early,
    )


async def _complete(request: web.Request, chat: bool) -> web.StreamResponse:
    state = request.app[STATE]
    try:
        generations = await _read(request, chat)
    except BadRequest as error:
        kind = "NotFoundError" if error.status == 404 else "BadRequestError"
        return _error(str(error), error.status, kind)
    if generations[0].stream and len(generations) > 1:
        return _error("The simulator streams one prompt a request only.", 400)
    if state.fails():
        return _error("simulated internal error", 500, "InternalServerError")
    extra = 1 if state.environment.fault("wrong_usage") else 0
    broken = state.environment.fault("garbage_sse")
    writers = [ResponseWriter(item, state.names[0], state.vocabulary, state.pseudo, extra) for item in generations]
    streams = [_Stream(writer, state.engine, broken) for writer in writers]
    numbers: list[int] = []
    try:
        for item, stream in zip(generations, streams, strict=True):
            state.engine.metrics.observe("request_params_max_tokens", item.max_tokens)
            numbers.append(
                state.engine.submit(
                    item.prompt,
                    len(item.output),
                    item.priority,
                    item.prompt_logprobs is not None,
                    stream.tokens,
                    stream.fail,
                    received=item.received and handover.receives(state.settings),
                )
            )
        if generations[0].stream:
            return await _stream(request, streams[0])
        for item, stream in zip(generations, streams, strict=True):
            await stream.ended
            state.engine.metrics.success[item.finish_reason] += 1
        return _document(writers, state)
    except EngineDead:
        return _error(
            "EngineCore encountered an issue. See stack trace (above) for the root cause.", 500, "EngineDeadError"
        )
    finally:
        for number in numbers:
            state.engine.abort(number)


def _document(writers: list[ResponseWriter], state: ServerState) -> web.Response:
    choices = [writer.choice(index) for index, writer in enumerate(writers)]
    prompt = sum(len(writer.generation.prompt) for writer in writers)
    output = sum(len(writer.generation.output) + writer.extra_tokens for writer in writers)
    usage = {
        **writers[0].usage(0),
        "prompt_tokens": prompt,
        "completion_tokens": output,
        "total_tokens": prompt + output,
    }
    document = writers[0].document(choices, usage)
    if writers[0].generation.hand_on and handover.sends(state.settings):
        document["kv_transfer_params"] = handover.address(writers[0].id, prompt, state.settings)
    return web.json_response(document)


async def _stream(request: web.Request, stream: _Stream) -> web.StreamResponse:
    await stream.first
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
    response.enable_chunked_encoding()
    await response.prepare(request)
    while stream.kept:  # more may come while a write waits
        kept = b"".join(stream.kept)
        stream.kept.clear()
        await response.write(kept)
    stream.transport = request.transport  # from here on the engine's callback writes
    try:
        await stream.ended
    except EngineDead:
        stream.transport = None
        await response.write(
            b'data: {"error":{"message":"EngineCore encountered an issue. See stack trace (above) for the root cause.",'
            b'"type":"InternalServerError","param":null,"code":500}}\n\ndata: [DONE]\n\n'
        )
    else:
        state = request.app[STATE]
        state.engine.metrics.success[stream.finish_reason] += 1
    await response.write_eof()
    return response


async def _completions(request: web.Request) -> web.StreamResponse:
    return await _complete(request, chat=False)


async def _chat(request: web.Request) -> web.StreamResponse:
    return await _complete(request, chat=True)


async def _health(request: web.Request) -> web.Response:
    state = request.app[STATE]
    if state.environment.fault("slow_health"):
        await asyncio.sleep(10)
    return web.Response(status=503 if state.engine.died.is_set() else 200)


async def _version(request: web.Request) -> web.Response:
    state = request.app[STATE]
    return web.json_response({"version": VERSION, "simulated": True, "card": state.settings.card.name})


async def _models(request: web.Request) -> web.Response:
    state = request.app[STATE]
    models = [
        {
            "id": name,
            "object": "model",
            "owned_by": "vllm",
            "root": state.model_path,
            "parent": None,
            "max_model_len": state.settings.max_model_len,
        }
        for name in state.names
    ]
    return web.json_response({"object": "list", "data": models})


async def _metrics(request: web.Request) -> web.Response:
    state = request.app[STATE]
    if state.environment.fault("garbage_metrics"):
        return web.Response(
            body=b"\xff\xfe<html>502</html>\x00vllm:num_requests_running{ NaNs", content_type="text/plain"
        )
    s, memory = state.settings, state.engine.memory
    cache = {
        "block_size": str(s.block_size),
        "cache_dtype": s.kv_format,
        "enable_prefix_caching": str(s.prefix_caching),
        "gpu_memory_utilization": str(s.gpu_memory_utilization),
        "kv_cache_size_tokens": str(memory.kv_tokens),
    }
    text = exposition(state.names[0], state.engine.states(), state.engine.metrics, cache)
    text += (
        "# HELP autotune_simulator_lag_seconds Wall seconds the simulator was behind its schedule at worst.\n"
        "# TYPE autotune_simulator_lag_seconds gauge\n"
        f"autotune_simulator_lag_seconds {state.engine.worst_lag_s}\n"
        "# HELP autotune_simulator_late_steps_total Steps more than 30 ms of wall time late.\n"
        "# TYPE autotune_simulator_late_steps_total counter\n"
        f"autotune_simulator_late_steps_total {float(state.engine.late_steps)}\n"
    )
    return web.Response(text=text, content_type="text/plain", charset="utf-8")


async def _tokenize(request: web.Request) -> web.Response:
    state = request.app[STATE]
    body = await request.json()
    if "messages" in body:
        text = "".join(f"<|{m.get('role')}|>\n{m.get('content')}\n" for m in body["messages"]) + "<|assistant|>\n"
    else:
        text = str(body.get("prompt", ""))
    tokens = state.vocabulary.encode(text)
    limit = state.settings.max_model_len
    return web.json_response({"count": len(tokens), "max_model_len": limit, "tokens": tokens, "token_strs": None})


async def _detokenize(request: web.Request) -> web.Response:
    body = await request.json()
    tokens = body.get("tokens")
    if not isinstance(tokens, list):
        return _error("Field required: tokens", 400)
    return web.json_response({"prompt": request.app[STATE].vocabulary.decode(tokens)})


async def _reset_prefix_cache(request: web.Request) -> web.Response:
    request.app[STATE].engine.reset_prefix_cache()
    return web.Response(status=200)


async def _reconfigure(request: web.Request) -> web.Response:
    """Ours, not vLLM's: see ``live.py``. It wants the key, as it changes something."""
    state = request.app[STATE]
    if state.keys and request.headers.get("Authorization", "").removeprefix("Bearer ") not in state.keys:
        return _error("Unauthorized", 401)
    body = await request.json()
    problem = reconfigure(state.engine, state.settings, body if isinstance(body, dict) else {"": body})
    return _error(problem, 400) if problem else web.Response(status=200)


async def _load(request: web.Request) -> web.Response:
    return web.json_response({"server_load": request.app[STATE].engine.in_flight})


async def _ping(request: web.Request) -> web.Response:
    return await _health(request)


async def _server_info(request: web.Request) -> web.Response:
    state = request.app[STATE]
    config = sections(state.settings, state.model_path)
    as_json = request.query.get("config_format") == "json"
    return web.json_response({"vllm_config": config if as_json else json.dumps(config), "simulated": True})


def build_app(state: ServerState) -> web.Application:
    """The web application of one server."""
    app = web.Application(middlewares=[_authenticate], client_max_size=64 * 2**20)
    app[STATE] = state
    app.router.add_post("/v1/completions", _completions)
    app.router.add_post("/v1/chat/completions", _chat)
    app.router.add_get("/v1/models", _models)
    for path, handler in (
        ("/health", _health),
        ("/version", _version),
        ("/metrics", _metrics),
        ("/ping", _ping),
        ("/load", _load),
        ("/server_info", _server_info),
    ):
        app.router.add_get(path, handler)
    for path, handler in (
        ("/ping", _ping),
        ("/tokenize", _tokenize),
        ("/detokenize", _detokenize),
        ("/reset_prefix_cache", _reset_prefix_cache),
        ("/autotune/reconfigure", _reconfigure),
    ):
        app.router.add_post(path, handler)
    return app
