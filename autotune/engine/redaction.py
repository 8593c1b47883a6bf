"""Secrets are taken out of text before it is printed, stored or sent anywhere.

One function, used by the whole project on everything that comes from a log, an environment or a command line.
It errs on the safe side: a word that merely looks like a token is replaced too.
"""

from __future__ import annotations

import re

REDACTED = "[redacted]"

# Each pattern keeps what names the secret (group "keep") and loses the secret itself.
_PATTERNS: tuple[re.Pattern[str], ...] = tuple(
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        # --api-key VALUE, --api-key=VALUE, -hf-token VALUE; not "inter-token latency", a dash within a word
        r"(?P<keep>(?:--|(?<!\w)-)(?:[\w-]*(?:api[-_]?keys?|token|secrets?|password|passwd))(?:\s+|=)['\"]?)(?!-)[^\s'\",]+",
        # 'api_key': ['a', 'b'] in vLLM's "non-default args" and other Python or JSON dictionaries
        r"(?P<keep>['\"][\w-]*(?:api[-_]?key|secret|password|passwd|access[-_]?token|hf[-_]?token|auth[-_]?token)s?['\"]"
        r"\s*[:=]\s*)(?:\[[^\]]*\]?|\([^)]*\)?|(?:'[^']*'?|\"[^\"]*\"?))",
        # HF_TOKEN=..., VLLM_API_KEY: ..., api_key=...
        r"(?P<keep>\b[\w-]*(?:api[-_]?key|(?:hf|auth|access|bearer|refresh|hub)_token|(?-i:[A-Z0-9]_TOKEN)|"
        r"secret(?:_access)?(?:_key)?|password|passwd)\s*[=:]\s*['\"]?)"
        r"(?!None\b|null\b|\[redacted\])[^\s'\",)}\]]+",
        r"(?P<keep>\bAuthorization['\"]?\s*[:=]\s*['\"]?(?:Bearer|Basic|Token)?\s*)[^\s'\",]+",
        r"(?P<keep>\bBearer\s+)[\w.~+/=-]{8,}",
        # scheme://user:password@host
        r"(?P<keep>\b[a-z][a-z0-9+.-]*://[^\s/:@]+:)[^\s/@]+(?=@)",
        r"(?P<keep>)\bhf_(?!overrides\b)[A-Za-z0-9]{8,}\b",  # hf_overrides is an argument of vLLM
        r"(?P<keep>)\bsk-[A-Za-z0-9_-]{8,}",
        r"(?P<keep>)\b(?:ghp|gho|ghs|ghu|github_pat|glpat|nvapi|xox[abp])[-_][A-Za-z0-9_-]{10,}",
        r"(?P<keep>)\b(?:AKIA|ASIA)[A-Z0-9]{16}\b",
        r"(?P<keep>)\beyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]{4,}",
        r"(?P<keep>[?&](?:X-Amz-Signature|X-Amz-Credential|Signature|sig|token|key)=)[^\s&'\"]+",
    )
)


def redact(text: str) -> str:
    """``text`` with tokens, keys and passwords replaced by ``[redacted]``; idempotent, never raises."""
    for pattern in _PATTERNS:
        text = pattern.sub(_keep_the_name, text)
    return text


def _keep_the_name(match: re.Match[str]) -> str:
    return f"{match.group('keep')}{REDACTED}"
