"""A toy model behind vLLM's routes, in this process, for tests of what asks a server about quality."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import numpy as np
from aiohttp import web
from aiohttp.test_utils import TestServer

from autotune.engine.failure_values import Failure
from autotune.engine.protocol import Resolved
from autotune.quality.answers import Scored, ScorerError
from autotune.quality.arrays import Reals
from autotune.testing.toy_scorer import ToyScorer

CONTEXT = 1000
Body = Mapping[str, object]
Answer = Callable[[Body], Awaitable[Body]]


@dataclass
class ToyEngine:
    """The part of a running engine that the gate needs. `requests` lists the paths that were asked."""

    model: ToyScorer
    status: int = 200
    url: str = ""
    served_model: str = "toy"
    api_key: str = "secret"
    time_scale: float = 1.0
    resolved: Resolved = field(default_factory=lambda: Resolved(version="0.32.0"))
    dead: Failure | None = None
    requests: list[str] = field(default_factory=list)

    def failure(self) -> Failure | None:
        return self.dead

    def app(self) -> web.Application:
        app = web.Application()
        app.router.add_post("/tokenize", self._route(self._tokenize))
        app.router.add_post("/v1/completions", self._route(self._completions))
        app.router.add_post("/v1/chat/completions", self._route(self._chat))
        if self.model.hooks:
            app.router.add_post("/inference/v1/generate", self._route(self._generate))
        app.router.add_get("/v1/models", self._models)
        return app

    def _route(self, answer: Answer) -> Callable[[web.Request], Awaitable[web.Response]]:
        async def handler(request: web.Request) -> web.Response:
            body = await request.json()
            if body.pop("model") != self.served_model:
                return web.Response(status=404, text="no such model")
            if request.path.startswith("/v1") and request.headers.get("Authorization") != f"Bearer {self.api_key}":
                return web.Response(status=401, text="Unauthorized")
            self.requests.append(request.path)
            if self.status != 200:
                return web.Response(status=self.status, text="broken")
            try:
                document = await answer(body)
            except ScorerError as error:
                return web.Response(status=error.status or 500, text=str(error))
            return web.Response(text=json.dumps(document), content_type="application/json")

        return handler

    async def _tokenize(self, body: Body) -> Body:
        messages = body.get("messages")
        if isinstance(messages, list):
            return {"tokens": await self.model.tokenize_chat(messages)}
        return {"tokens": await self.model.tokenize(str(body["prompt"]))}

    async def _completions(self, body: Body) -> Body:
        tokens, count = body["prompt"], int(str(body["max_tokens"]))
        texts = tokens if isinstance(tokens, list) else [tokens]
        if all(isinstance(text, str) for text in texts):
            answers = [await self.model.complete(str(text), count) for text in texts]
            return {"choices": [{"index": index, "text": text} for index, text in enumerate(answers)]}
        if not isinstance(tokens, list):
            raise ScorerError("prompt is neither text nor ids", 400)
        choice: dict[str, object] = {"index": 0, "text": "", "finish_reason": "length"}
        reported = count
        if "prompt_logprobs" in body:
            rows = _listed(await self.model.score(tokens), tokens[1:])
            named = [{str(token): {"logprob": value} for token, value in row.items()} for row in rows]
            choice["prompt_logprobs"] = [None, *named]
        else:
            written = await self.model.continue_(tokens, count)
            reported = written.completion_tokens
            rows = _listed(written.scored, written.tokens)
            tops = [{f"token_id:{token}": value for token, value in row.items()} for row in rows]
            choice |= {"token_ids": written.tokens, "logprobs": {"top_logprobs": tops}}
        return {"choices": [choice], "usage": {"completion_tokens": reported}}

    async def _generate(self, body: Body) -> Body:
        """vLLM 0.32's route for ids: scores as a base64 array of numpy's, log-probabilities with numbers for tokens."""
        tokens, asked = body["token_ids"], body["sampling_params"]
        if not isinstance(tokens, list) or not isinstance(asked, dict):
            raise ScorerError("token_ids or sampling_params are missing", 422)
        if "prompt_logprob_token_ids" in asked:
            ids = np.array(asked["prompt_logprob_token_ids"], np.int64)
            scored = await self.model.score_ids(tokens, ids)
            rows = _listed(scored, tokens[1:])
            scores = np.array([[row.get(i, -np.inf) for i in wanted] for wanted, row in zip(ids, rows, strict=True)])
            best = [{int(i): row[int(i)] for i in (first, token)}
                    for first, token, row in zip(scored.ids[:, 0], tokens[1:], rows, strict=True)]  # fmt: skip
            named = [{str(token): {"logprob": value} for token, value in row.items()} for row in best]
            return {"choices": [{}], "prompt_logprobs": [None, *named], "prompt_token_id_logprobs": _npy(scores)}
        forced = asked["trace_decode_token_ids"][: asked["max_tokens"]]
        written = await self.model.replay(tokens, forced)
        content = [
            {"token_id": token, "logprob": row[token], "top_logprobs": [
                {"token_id": i, "logprob": value} for i, value in row.items() if i != token]}
            for token, row in zip(written.tokens, _listed(written.scored, written.tokens), strict=True)
        ]  # fmt: skip
        return {"choices": [{"token_ids": written.tokens, "finish_reason": "length", "logprobs": {"content": content}}]}

    async def _chat(self, body: Body) -> Body:
        reply = await self.model.chat(body)
        return {"choices": [{"message": {"content": reply.text}, "finish_reason": "stop"}]}

    async def _models(self, _: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": self.served_model, "max_model_len": CONTEXT}]})


@asynccontextmanager
async def serving(model: ToyScorer, status: int = 200) -> AsyncIterator[ToyEngine]:
    """Serve a toy model; every answer has `status` where that is not 200."""
    engine = ToyEngine(model, status)
    async with TestServer(engine.app(), host="127.0.0.1") as server:
        engine.url = str(server.make_url("")).rstrip("/")
        yield engine


def _npy(scores: Reals) -> str:
    held = io.BytesIO()
    np.save(held, scores.astype(np.float32), allow_pickle=False)
    return base64.b64encode(held.getvalue()).decode()


def _listed(scored: Scored, tokens: Sequence[int]) -> list[dict[int, float]]:
    """Rows as vLLM writes them: the text's own token, then the likeliest ones."""
    rows: list[dict[int, float]] = []
    for index, token in enumerate(tokens):
        row = {int(token): float(scored.target[index])}
        row |= {int(i): float(v) for i, v in zip(scored.ids[index], scored.logprobs[index], strict=True)}
        rows.append(row)
    return rows
