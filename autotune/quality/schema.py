"""JSON Schema for answers: the package `jsonschema` where it is installed (extra `quality`)."""

from __future__ import annotations

import importlib
import json
from typing import Protocol, cast

from pydantic import JsonValue


class _Validator(Protocol):
    def is_valid(self, instance: JsonValue) -> bool: ...


class _ValidatorClass(Protocol):
    def __call__(self, schema: JsonValue) -> _Validator: ...

    def check_schema(self, schema: JsonValue) -> None: ...


def _validator_class() -> _ValidatorClass | None:
    try:
        module = importlib.import_module("jsonschema")
    except ImportError:
        return None
    return cast(_ValidatorClass, module.Draft202012Validator)


def schema_problem(schema: JsonValue) -> str:
    """What is wrong with a schema, or empty."""
    if not isinstance(schema, dict):
        return "a schema is an object"
    found = _validator_class()
    if found is None:
        return "answers of kind schema need the package jsonschema: pip install 'vllm-autotune[quality]'"
    try:
        found.check_schema(schema)
    except Exception as error:  # the package's own exception class cannot be named without importing it
        return f"no JSON schema: {str(error).splitlines()[0]}"
    return ""


def conforms(text: str, schema: JsonValue) -> bool:
    """Whether a text is JSON that fits a schema."""
    found = _validator_class()
    try:
        value: JsonValue = json.loads(text)
    except ValueError:
        return False
    return found is not None and found(schema).is_valid(value)
