"""Keeps secrets out of study files: whatever is written there is stored, shown and shared."""

from __future__ import annotations

import re
from collections.abc import Iterator

from autotune.errors import SpecError
from autotune.spec.document import Document, KeyPath, Plain, dotted

_KEYS = re.compile(
    r"\b(?:hf_[A-Za-z0-9]{16,}|sk-[A-Za-z0-9_-]{16,}|gh[pousr]_[A-Za-z0-9]{20,}|github_pat_[A-Za-z0-9_]{20,}"
    r"|glpat-[A-Za-z0-9_-]{16,}|xox[abprs]-[A-Za-z0-9-]{10,}|nvapi-[A-Za-z0-9_-]{16,}|AKIA[0-9A-Z]{16}"
    r"|AIza[0-9A-Za-z_-]{30,}|eyJ[A-Za-z0-9_-]{10,}\.eyJ[A-Za-z0-9_-]{10,})"
)
_BEARER = re.compile(r"\bBearer\s+(?!\$\{)[^\s\"']{8,}")
_URL_PASSWORD = re.compile(r"[a-z][a-z0-9+.-]*://[^/\s:@]+:(?!\$\{)[^/\s@]+@")
_SECRET_NAME = re.compile(r"(?:^|_)(?:TOKEN|API_?KEY|SECRET|PASSWORD|PASSWD|SECRET_ACCESS_KEY)$", re.IGNORECASE)


def find_secrets(document: Document) -> list[SpecError]:
    """One error per secret that stands in the file; the secret itself is never repeated."""
    errors = []
    for path, hint in _secrets(document.data, ()):
        file, line = document.where(path)
        errors.append(SpecError("holds a secret in plain text", file=file, line=line, key=dotted(path), hint=hint))
    return errors


def redacted(text: str) -> str:
    """The text with everything that looks like a secret replaced."""
    text = _KEYS.sub("***", text)
    text = _BEARER.sub("Bearer ***", text)
    return _URL_PASSWORD.sub("***@", text)


def _secrets(value: Plain, path: KeyPath) -> Iterator[tuple[KeyPath, str]]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _secrets(inner, (*path, key))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from _secrets(inner, (*path, index))
    elif isinstance(value, int | float) and not isinstance(value, bool) and _named_secret(path, str(value)):
        yield path, f"put it into an environment variable and write ${{{path[-1]}}} here"
    elif isinstance(value, str) and _URL_PASSWORD.search(value):
        yield path, "leave the password out of the address: PGPASSWORD or ~/.pgpass is read for PostgreSQL"
    elif isinstance(value, str) and (_KEYS.search(value) or _BEARER.search(value) or _named_secret(path, value)):
        name = str(path[-1]) if len(path) > 1 and path[-2] == "env" else "NAME"
        yield path, f"put it into an environment variable and write ${{{name}}} here"


def _named_secret(path: KeyPath, value: str) -> bool:
    """An environment variable or argument whose name says that it is a secret, with a literal value."""
    if len(path) < 2 or path[-2] not in ("env", "args", "fixed") or not isinstance(path[-1], str):
        return False
    return bool(_SECRET_NAME.search(path[-1].replace("-", "_"))) and bool(value) and "${" not in value
