"""What the server-sent events of an answer say."""

from __future__ import annotations

import json

NO_TOKENS = (b'"choices":[]', b'"choices": []', b"[DONE]", b'"error"')
"""What an event without a token has: the usage, the end, an error. In a text the quotes would be escaped."""


def payload_of(event: bytes) -> bytes | None:
    """The data of one server-sent event (lines joined), or None for comments and events without data."""
    if event.startswith(b"data:") and b"\n" not in event:
        return event[5:].strip()
    lines = [line[5:].strip() for line in event.splitlines() if line.startswith(b"data:")]
    return b"\n".join(lines) if lines else None


def read_object(payload: bytes) -> dict[str, object] | None:
    """The JSON object of an event, or None where it is none."""
    try:
        value = json.loads(payload)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def tokens_in(chunk: dict[str, object]) -> tuple[bool, bool, bool]:
    """(has choices, carries a token of any kind, carries text a reader sees) of a completion or chat chunk."""
    choices = chunk.get("choices")
    if not isinstance(choices, list) or not choices:
        return False, False, False
    any_token = visible = False
    for choice in choices:
        if not isinstance(choice, dict):
            continue
        delta = choice.get("delta")
        if isinstance(delta, dict):
            visible = visible or bool(delta.get("content") or delta.get("tool_calls") or delta.get("refusal"))
            any_token = any_token or bool(delta.get("reasoning") or delta.get("reasoning_content"))
        else:
            visible = visible or bool(choice.get("text"))
    return True, any_token or visible, visible


def only_tokens(data: bytes) -> bool:
    """Whether events that follow each other have nothing but tokens: what else there is comes last."""
    last = data[data.rfind(b"data:") :]
    return not any(mark in last for mark in NO_TOKENS)


def error_in(chunk: dict[str, object]) -> str | None:
    """The error text of an event that reports one in mid-stream."""
    error = chunk.get("error")
    if isinstance(error, dict):
        return str(error.get("message") or error)
    if error:
        return str(error)
    if chunk.get("object") == "error":
        return str(chunk.get("message") or "error")
    return None


def refusal_in(body: str) -> str:
    """What a server says in the body of an error: its own sentence where it is JSON as OpenAI or FastAPI write it."""
    try:
        document = json.loads(body)
    except ValueError:
        return body
    said = (error_in(document) or document.get("detail")) if isinstance(document, dict) else None
    return str(said) if said else body
