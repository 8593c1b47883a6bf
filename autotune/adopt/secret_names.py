"""Which variables and arguments hold secrets, by their names and values."""

from __future__ import annotations

import re

from autotune.engine.redaction import redact

_NAME = re.compile(
    r"(^|_)(API_?KEYS?|TOKEN|SECRETS?|PASSWORD|PASSWD|CREDENTIALS?|ACCESS_KEY(_ID)?|PRIVATE_KEY)(_|$)", re.IGNORECASE
)
_HARMLESS = re.compile(r"(^|_)(TOKEN_THRESHOLD|TOKEN_LIMIT|TOKEN_BUDGET)(_|$)", re.IGNORECASE)


def is_secret(name: str, value: str = "") -> bool:
    """Whether a variable or argument of this name (or with this value) must not be written down."""
    plain = name.replace("-", "_")
    named = bool(_NAME.search(plain)) and not _HARMLESS.search(plain)
    return named or bool(value and redact(f"value {value}") != f"value {value}")
