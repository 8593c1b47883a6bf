"""Expressions of a search space (`when`, `require`, `derive`): a small closed grammar, never `eval`.

    max_num_batched_tokens >= max_num_seqs
    quantization == "fp8" and kv_cache_dtype in [null, "fp8"]
    ceil(max_model_len / 4) if enable_prefix_caching else null
    gpu_memory >= 80GiB or tensor_parallel_size is not null

Names are vLLM's arguments, the space's parameters, or facts (`model.num_experts`, `gpus`, `gpu_memory`, ...).

`null` means "not given", so vLLM's default applies and we do not know it. Arithmetic with null is null; an order
comparison with null is null; `and`, `or` and `not` are Kleene's. Equality of a name with a literal is plain
(`quantization == "fp8"` is false where it is not given), any other equality is null where one side is. A `require`
that comes out as null holds; a `when` that comes out as null does not switch its parameter on; a `derive` that comes
out as null sets nothing.
"""

from __future__ import annotations

import difflib
import math
import operator
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TypeAlias

from autotune.errors import SpecError
from autotune.space.config import FrozenValue, Scalar
from autotune.space.syntax import MisfitError, Node, parse_tree

Value: TypeAlias = FrozenValue
MAX_SHOWN = 200
"""Longest expression that an error repeats."""


@dataclass(frozen=True)
class Expr:
    """A parsed expression; equal when the text is."""

    text: str
    root: Node = field(compare=False, repr=False)

    @property
    def names(self) -> frozenset[str]:
        """Every name that it reads."""
        return frozenset(_names(self.root))

    def evaluate(self, names: Mapping[str, Value]) -> Value:
        """Its value; a name that is not in `names` is null.

        Raises:
            SpecError: types do not fit, a division by zero, or a number out of range.
        """
        try:
            return _evaluate(self.root, names)
        except (ArithmeticError, ValueError) as error:
            raise SpecError(f"`{self.text}`: {error}", hint="Check the numbers in it.") from error
        except MisfitError as error:
            raise _error(self.text, error.column, error.message) from error

    def holds(self, names: Mapping[str, Value]) -> bool | None:
        """Whether it holds: True, False, or None where an argument it needs is not given."""
        value = self.evaluate(names)
        if value is None or isinstance(value, bool):
            return value
        raise _error(self.text, 1, f"is {value!r}, not true or false", "Write a comparison, such as `a >= b`.")

    def check_names(self, known: Iterable[str]) -> None:
        """Refuse names that nobody knows.

        Raises:
            SpecError: with the position and the nearest known name.
        """
        legal = set(known)
        for node in _walk(self.root):
            if node.kind == "name" and node.text not in legal:
                near = nearest(node.text, legal)
                hint = f"Did you mean `{near}`?" if near else "Use a parameter of the space, a vLLM argument or a fact."
                raise _error(self.text, node.column, f"`{node.text}` is not known", hint)


def nearest(word: str, words: Iterable[str]) -> str | None:
    """The most similar of `words`, or None where none is similar."""
    found = difflib.get_close_matches(word, sorted(words), n=1, cutoff=0.6)
    return found[0] if found else None


@lru_cache(maxsize=1024)
def parse_expression(text: str) -> Expr:
    """Parse one expression.

    Raises:
        SpecError: with the position and what may stand there.
    """
    try:
        return Expr(text, parse_tree(text))
    except MisfitError as error:
        raise _error(text, error.column, error.message) from error


def _error(text: str, column: int, message: str, hint: str = "") -> SpecError:
    if len(text) > MAX_SHOWN or "\n" in text:
        return SpecError(f"column {column}: {message}", hint=hint or None)
    pointer = f"{text}\n  {' ' * (column - 1)}^"
    return SpecError(f"column {column}: {message}", hint=f"{pointer}\n  {hint}".rstrip())


def _walk(node: Node) -> Iterable[Node]:
    yield node
    for operand in node.operands:
        yield from _walk(operand)


def _names(node: Node) -> Iterable[str]:
    return (inner.text for inner in _walk(node) if inner.kind == "name")


_ORDER: dict[str, Callable[[float, float], bool]] = {
    "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip


def _evaluate(node: Node, names: Mapping[str, Value]) -> Value:
    match node.kind:
        case "literal":
            return node.value
        case "name":
            return names.get(node.text)
        case "and_" | "or_":
            return _logic(node, names)
        case "if_else":
            condition = _truth(node.operands[1], names)
            return None if condition is None else _evaluate(node.operands[0 if condition else 2], names)
        case "not_":
            truth = _truth(node.operands[0], names)
            return None if truth is None else not truth
        case "is_null":
            return _evaluate(node.operands[0], names) is None
        case "is_set":
            return _evaluate(node.operands[0], names) is not None
        case _:
            return _operate(node, [_evaluate(operand, names) for operand in node.operands])


def _truth(node: Node, names: Mapping[str, Value]) -> bool | None:
    value = _evaluate(node, names)
    if value is None or isinstance(value, bool):
        return value
    raise MisfitError(f"{value!r} is neither true nor false", node.column)


def _logic(node: Node, names: Mapping[str, Value]) -> bool | None:
    decisive = node.kind == "or_"
    left = _truth(node.operands[0], names)
    if left is decisive:
        return decisive
    right = _truth(node.operands[1], names)
    if right is decisive:
        return decisive
    return None if left is None or right is None else not decisive


def _operate(node: Node, values: list[Value]) -> Value:
    match node.kind:
        case "list":
            return tuple(_scalar(value, node) for value in values)
        case "in_" | "not_in":
            return _member(node, values[0], values[1])
        case "compare":
            return _compare(node, values[0], values[1])
        case "negative":
            return None if values[0] is None else -_number(values[0], node)
        case "call":
            return _call(node, values)
        case _:
            return _arithmetic(node, values[0], values[1])


def _scalar(value: Value, node: Node) -> Scalar:
    if isinstance(value, tuple):
        raise MisfitError("a list in a list", node.column)
    return value


def _number(value: Value, node: Node) -> int | float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise MisfitError(f"{value!r} is no number", node.column)
    return value


def _member(node: Node, value: Value, group: Value) -> bool | None:
    if group is None:
        return None
    if not isinstance(group, tuple):
        raise MisfitError(f"{group!r} is no list", node.column)
    return (value in group) is (node.kind == "in_")


def _compare(node: Node, left: Value, right: Value) -> bool | None:
    unset = left is None or right is None
    if node.text in ("==", "!="):
        if unset and not _name_against_literal(node):
            return None
        return _same(left, right) is (node.text == "==")
    if unset:
        return None
    return _ORDER[node.text](_number(left, node), _number(right, node))


def _name_against_literal(node: Node) -> bool:
    kinds = {operand.kind for operand in node.operands}
    return "literal" in kinds and kinds <= {"literal", "name"}


def _same(left: Value, right: Value) -> bool:
    # True == 1 in Python; in a configuration a switch is no number.
    return isinstance(left, bool) == isinstance(right, bool) and left == right


def _call(node: Node, values: list[Value]) -> Value:
    flat = [item for value in values for item in (value if isinstance(value, tuple) else (value,))]
    if not flat or any(value is None for value in flat):
        return None
    numbers = [_number(value, node) for value in flat]
    match node.text:
        case "min":
            return min(numbers)
        case "max":
            return max(numbers)
        case "ceil":
            return math.ceil(numbers[0])
        case _:
            return math.floor(numbers[0])


def _arithmetic(node: Node, left: Value, right: Value) -> Value:
    if left is None or right is None:
        return None
    a, b = _number(left, node), _number(right, node)
    match node.text:
        case "+":
            return a + b
        case "-":
            return a - b
        case "*":
            return a * b
        case "//":
            return a // b
        case "%":
            return a % b
        case _:
            whole = isinstance(a, int) and isinstance(b, int) and a % b == 0
            return a // b if whole else a / b
