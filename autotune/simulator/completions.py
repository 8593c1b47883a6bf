"""Requests and responses of /v1/completions and /v1/chat/completions: reading bodies, building JSON and events."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from .pictures import image_ids
from .tokens import PseudoModel, TokenLogprob, Vocabulary, output_tokens, seed_of

Json = Mapping[str, object]


class BadRequest(Exception):
    """What the client asked for is not possible; ``status`` is the HTTP status."""

    def __init__(self, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True)
class Generation:
    """One prompt and what to generate for it, in tokens."""

    chat: bool
    prompt: list[int]
    output: list[int]
    finish_reason: str
    stream: bool
    usage: bool
    continuous_usage: bool
    logprobs: int | None
    prompt_logprobs: int | None
    echo: bool
    priority: int
    return_token_ids: bool
    max_tokens: int
    hand_on: bool = False
    """Keep the prompt's KV cache for another engine."""
    received: bool = False
    """Another engine has read the prompt."""


def _whole(body: Json, name: str, default: int | None) -> int | None:
    value = body.get(name)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int):
        raise BadRequest(f"Input should be a valid integer: {name}")
    return value


def _prompts(body: Json, vocabulary: Vocabulary) -> list[list[int]]:
    prompt = body.get("prompt")
    if isinstance(prompt, str):
        return [vocabulary.encode(prompt)]
    if isinstance(prompt, list) and prompt:
        if all(isinstance(item, int) for item in prompt):
            return [prompt]
        if all(isinstance(item, list) for item in prompt):
            return [list(item) for item in prompt]
        if all(isinstance(item, str) for item in prompt):
            return [vocabulary.encode(item) for item in prompt]
    raise BadRequest("Either prompt or prompt_embeds must be provided and non-empty.")


def _chat_prompt(body: Json, vocabulary: Vocabulary) -> list[int]:
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        raise BadRequest("messages must be a non-empty list")
    parts = []
    images: list[list[int]] = []
    for message in messages:
        content = message.get("content") if isinstance(message, dict) else None
        if isinstance(content, list):
            try:
                images += [ids for part in content if (ids := image_ids(part, vocabulary.size)) is not None]
            except ValueError as error:
                raise BadRequest(str(error)) from None
            content = "".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
        role = message.get("role", "user") if isinstance(message, dict) else "user"
        parts.append(f"<|{role}|>\n{content or ''}\n")
    tokens = vocabulary.encode("".join(parts) + "<|assistant|>\n")
    return [*tokens, *(token for ids in images for token in ids)]


def _natural_length(seed: int) -> int:
    """Where the pseudo model would stop by itself: 20 to 400 tokens, fixed for a prompt."""
    return 20 + seed % 381


def _room(asked: int | None, prompt: int, limit: int) -> int:
    """Most output tokens, or vLLM's refusal."""
    room = limit - prompt
    if room < 1:
        raise BadRequest(
            f"This model's maximum context length is {limit} tokens. However, your request has {prompt} input tokens. "
            f"Please reduce the length of the input messages. (parameter=input_tokens, value={prompt})"
        )
    if asked is None:
        return room
    if asked > room:
        raise BadRequest(
            f"'max_tokens' or 'max_completion_tokens' is too large: {asked}. This model's maximum context length is "
            f"{limit} tokens and your request has {prompt} input tokens ({asked} > {limit} - {prompt}). "
            f"(parameter=max_tokens, value={asked})"
        )
    if asked < 1:
        raise BadRequest(f"max_tokens must be at least 1, got {asked}. (parameter=max_tokens, value={asked})")
    return asked


def read_body(
    body: Json, *, chat: bool, vocabulary: Vocabulary, max_model_len: int, max_logprobs: int, early_stop: bool
) -> list[Generation]:
    """What a request body asks for, one entry a prompt.

    :raises BadRequest: with vLLM's message.
    """
    prompts = [_chat_prompt(body, vocabulary)] if chat else _prompts(body, vocabulary)
    limit = _whole(body, "max_completion_tokens", None) if chat else None
    asked = limit if limit is not None else _whole(body, "max_tokens", None if chat else 16)
    wanted = _whole(body, "top_logprobs" if chat else "logprobs", None)
    if chat:
        wanted = (wanted or 0) if body.get("logprobs") else None
    prompt_logprobs = _whole(body, "prompt_logprobs", None)
    for name, value in (("logprobs", wanted), ("prompt_logprobs", prompt_logprobs)):
        if value is not None and max_logprobs >= 0 and value > max_logprobs:
            raise BadRequest(f"Requested {name} of {value}, which is greater than max allowed: {max_logprobs}")
    options = body.get("stream_options")
    options = options if isinstance(options, dict) else {}
    handed = body.get("kv_transfer_params")
    handed = handed if isinstance(handed, dict) else {}
    shortest = _whole(body, "min_tokens", 0) or 0
    generations = []
    for prompt in prompts:
        most = _room(asked, len(prompt), max_model_len)
        seed = seed_of(prompt)
        if body.get("ignore_eos"):
            count = max(1, most // 3) if early_stop else most
        else:
            count = min(most, max(_natural_length(seed), shortest))
        generations.append(
            Generation(
                chat=chat,
                prompt=prompt,
                output=output_tokens(seed, count, vocabulary.size),
                finish_reason="length" if count == most else "stop",
                stream=bool(body.get("stream")),
                usage=bool(options.get("include_usage")),
                continuous_usage=bool(options.get("continuous_usage_stats")),
                logprobs=wanted,
                prompt_logprobs=prompt_logprobs,
                echo=bool(body.get("echo")) and not chat,
                priority=_whole(body, "priority", 0) or 0,
                return_token_ids=bool(body.get("return_token_ids")),
                max_tokens=most,
                hand_on=handed.get("do_remote_decode") is True,
                received=handed.get("do_remote_prefill") is True and handed.get("remote_block_ids") is not None,
            )
        )
    return generations


class ResponseWriter:
    """Builds the answers to one request: one JSON document, or the bytes of every event."""

    def __init__(
        self, generation: Generation, model: str, vocabulary: Vocabulary, pseudo: PseudoModel, extra_tokens: int = 0
    ) -> None:
        self.generation = generation
        self.vocabulary = vocabulary
        self.pseudo = pseudo
        self.extra_tokens = extra_tokens
        self.created = int(time.time())
        self.id = ("chatcmpl-" if generation.chat else "cmpl-") + f"{random.getrandbits(128):032x}"
        self.model = model
        kind = "chat.completion" if generation.chat else "text_completion"
        chunk = "chat.completion.chunk" if generation.chat else "text_completion"
        self._base = {"id": self.id, "object": kind, "created": self.created, "model": model}
        head = json.dumps({**self._base, "object": chunk}, separators=(",", ":"))[:-1]
        self._head = f"data: {head},".encode()
        self._sent = 0

    def usage(self, output: int) -> dict[str, object]:
        """The usage object."""
        prompt = len(self.generation.prompt)
        return {
            "prompt_tokens": prompt,
            "total_tokens": prompt + output + self.extra_tokens,
            "completion_tokens": output + self.extra_tokens,
            "prompt_tokens_details": None,
        }

    def event(self, gain: int, last: bool) -> bytes:
        """The event for the next ``gain`` tokens (for a chat's first token, the role's event before it)."""
        g = self.generation
        start, self._sent = self._sent, self._sent + gain
        tokens = g.output[start : self._sent]
        text = json.dumps(self.vocabulary.decode(tokens))
        reason = f'"{g.finish_reason}"' if last else "null"
        logprobs = "null" if g.logprobs is None else json.dumps(self._logprobs(start, self._sent))
        ids = json.dumps(tokens) if g.return_token_ids else "null"
        field = f'"delta":{{"content":{text}}}' if g.chat else f'"text":{text}'
        choice = (
            f'"choices":[{{"index":0,{field},"logprobs":{logprobs},"finish_reason":{reason},'
            f'"stop_reason":null,"token_ids":{ids}}}]'
        )
        usage = f',"usage":{json.dumps(self.usage(self._sent))}' if g.continuous_usage else ""
        event = self._head + choice.encode() + usage.encode() + b"}\n\n"
        if g.chat and start == 0:
            role = (
                b'"choices":[{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,'
                b'"finish_reason":null}]}\n\n'
            )
            return self._head + role + event
        return event

    def tail(self) -> bytes:
        """What ends a stream: the usage event when asked for, and ``[DONE]``."""
        end = b"data: [DONE]\n\n"
        if not self.generation.usage:
            return end
        usage = json.dumps(self.usage(len(self.generation.output)))
        return self._head + b'"choices":[],"usage":' + usage.encode() + b"}\n\n" + end

    def choice(self, index: int) -> dict[str, object]:
        """The choice of a response that is not streamed."""
        g = self.generation
        text = self.vocabulary.decode(g.output)
        logprobs = None if g.logprobs is None else self._logprobs(0, len(g.output))
        if g.chat:
            message = {"role": "assistant", "content": text}
            return {"index": index, "message": message, "logprobs": logprobs, "finish_reason": g.finish_reason}
        if g.echo:
            text = self.vocabulary.decode(g.prompt) + text
        return {
            "index": index,
            "text": text,
            "logprobs": logprobs,
            "finish_reason": g.finish_reason,
            "stop_reason": None,
            "prompt_logprobs": self.prompt_logprobs(),
            "token_ids": g.output if g.return_token_ids else None,
            "prompt_token_ids": g.prompt if g.return_token_ids else None,
        }

    def document(self, choices: Sequence[Json], usage: Json) -> dict[str, object]:
        """The response object."""
        extra = {"prompt_logprobs": self.prompt_logprobs()} if self.generation.chat else {}
        return {**self._base, "choices": list(choices), "usage": dict(usage), **extra}

    def prompt_logprobs(self) -> list[dict[str, object] | None] | None:
        """For every prompt position the actual token and the likeliest ones by id; None for the first."""
        g = self.generation
        if g.prompt_logprobs is None:
            return None
        rows: list[dict[str, object] | None] = [None]
        for position in range(1, len(g.prompt)):
            before = g.prompt[max(0, position - 2) : position]
            candidates = self.pseudo.top(before, g.prompt[position], g.prompt_logprobs)
            rows.append(
                {
                    str(item.token): {
                        "logprob": item.logprob,
                        "rank": item.rank,
                        "decoded_token": self.vocabulary.text(item.token),
                    }
                    for item in candidates
                }
            )
        return rows

    def _logprobs(self, start: int, end: int) -> dict[str, object]:
        g = self.generation
        tokens = [*(g.prompt if g.echo and start == 0 else []), *g.output[start:end]]
        context = g.prompt[-2:] if not (g.echo and start == 0) else []
        if start:
            context = [*g.prompt[-2:], *g.output[:start]][-2:]
        chat_rows: list[dict[str, object]] = []
        own: list[float | None] = []
        tops: list[dict[str, float] | None] = []
        offsets: list[int] = []
        offset = 0
        for position, token in enumerate(tokens):
            before = [*context, *tokens[max(0, position - 2) : position]][-2:]
            text = self.vocabulary.text(token)
            if not before:
                own.append(None)
                tops.append(None)
            else:
                items = self.pseudo.top(before, token, g.logprobs or 0)
                own.append(items[0].logprob)
                tops.append({self.vocabulary.text(item.token): item.logprob for item in items})
                chat_rows.append(self._chat_row(text, items))
            offsets.append(offset)
            offset += len(text)
        if g.chat:
            return {"content": chat_rows}
        texts = [self.vocabulary.text(token) for token in tokens]
        return {"tokens": texts, "token_logprobs": own, "top_logprobs": tops, "text_offset": offsets}

    def _chat_row(self, text: str, items: Sequence[TokenLogprob]) -> dict[str, object]:
        rows = [self._chat_token(item) for item in items]
        wanted = self.generation.logprobs or 0
        top = sorted(rows, key=lambda row: -float(str(row["logprob"])))[:wanted]
        return {**rows[0], "token": text, "top_logprobs": top}

    def _chat_token(self, item: TokenLogprob) -> dict[str, object]:
        text = self.vocabulary.text(item.token)
        return {"token": text, "logprob": item.logprob, "bytes": list(text.encode())}
