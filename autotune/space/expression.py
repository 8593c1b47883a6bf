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

from lark import Lark, Token, Transformer, UnexpectedCharacters, UnexpectedEOF, UnexpectedInput, UnexpectedToken
from lark.exceptions import LarkError, VisitError

from autotune.errors import SpecError
from autotune.space.config import FrozenValue, Scalar

MAX_LENGTH = 1000
"""Longest expression, in characters."""
MAX_DEPTH = 60
"""Deepest nesting; keeps evaluation far from Python's recursion limit."""

_GRAMMAR = r"""
?start: expr
?expr: either
     | either "if" either "else" expr  -> if_else
?either: both
     | either "or" both                -> or_
?both: negation
     | both "and" negation             -> and_
?negation: relation
     | "not" negation                  -> not_
?relation: sum
     | sum COMPARE sum                 -> compare
     | sum "in" sum                    -> in_
     | sum "not" "in" sum              -> not_in
     | sum "is" "null"                 -> is_null
     | sum "is" "not" "null"           -> is_set
     | sum "is" "set"                  -> is_set
?sum: product
     | sum ADD product                 -> binary
?product: unary
     | product MULTIPLY unary          -> binary
?unary: atom
     | "-" unary                       -> negative
?atom: NUMBER                          -> number
     | STRING                          -> string
     | "true"                          -> true
     | "false"                         -> false
     | "null"                          -> null
     | FUNCTION "(" [expr ("," expr)*] ")" -> call
     | "[" [expr ("," expr)*] "]"      -> list_of
     | NAME                            -> name
     | "(" expr ")"
COMPARE: "==" | "!=" | "<=" | ">=" | "<" | ">"
ADD: "+" | "-"
MULTIPLY: "*" | "//" | "/" | "%"
FUNCTION.2: /(min|max|ceil|floor)(?=\s*\()/
NUMBER: /[0-9]+(\.[0-9]+)?(e[+-]?[0-9]+)?([A-Za-z]+)?/
STRING: /"[^"\n]*"|'[^'\n]*'/
NAME: /[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*/
%ignore /\s+/
"""

_UNITS: dict[str, float] = {
    "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12,
    "us": 1e-6, "ms": 1e-3, "s": 1, "min": 60, "h": 3600,
}  # fmt: skip
Value: TypeAlias = FrozenValue


@dataclass(frozen=True, slots=True)
class Node:
    """A node of the syntax tree: an operation over operands, a literal (`value`) or a name (`text`)."""

    kind: str
    operands: tuple[Node, ...] = ()
    text: str = ""
    value: Value = None
    column: int = 1
    depth: int = 1


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
        except _MisfitError as error:
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
    if len(text) > MAX_LENGTH:
        raise SpecError(f"an expression of {len(text)} characters", hint=f"At most {MAX_LENGTH} are read; split it.")
    try:
        root = _parser().parse(text)
    except UnexpectedEOF as error:
        raise _error(text, len(text) + 1, "ends too early") from error
    except UnexpectedInput as error:
        ended = isinstance(error, UnexpectedToken) and error.token.type == "$END"
        raise _error(text, len(text) + 1 if ended else max(1, error.column), _unexpected(error)) from error
    except _MisfitError as error:
        raise _error(text, error.column, error.message) from error
    except VisitError as error:
        inner = error.orig_exc
        column, message = (inner.column, inner.message) if isinstance(inner, _MisfitError) else (1, str(inner))
        raise _error(text, column, message) from error
    except (LarkError, ValueError, ArithmeticError) as error:
        raise _error(text, 1, str(error)) from error
    assert isinstance(root, Node)
    return Expr(text, root)


class _MisfitError(Exception):
    """What was wrong, and at which column."""

    def __init__(self, message: str, column: int) -> None:
        super().__init__(message)
        self.message, self.column = message, column


def _error(text: str, column: int, message: str, hint: str = "") -> SpecError:
    pointer = f"{text}\n  {' ' * (column - 1)}^" if "\n" not in text else text
    return SpecError(f"column {column}: {message}", hint=f"{pointer}\n  {hint}".rstrip())


def _unexpected(error: UnexpectedInput) -> str:
    if isinstance(error, UnexpectedToken):
        if error.token.type == "$END":
            return "ends too early"
        return f"{str(error.token)!r} cannot stand here"
    if isinstance(error, UnexpectedCharacters):
        return f"{error.char!r} cannot stand here"
    return "cannot be read"


class _Build(Transformer[Token, Node]):
    """Makes nodes while parsing, bottom up, so that nothing recurses over a hostile text."""

    def number(self, items: list[Token]) -> Node:
        token = items[0]
        digits = token.rstrip("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")
        unit = token[len(digits) :]
        factor = _UNITS.get(unit) if unit else 1
        if factor is None:
            raise _MisfitError(f"{unit!r} is no unit (there are {', '.join(_UNITS)})", token.column or 1)
        plain = int(digits) if digits.isdigit() else float(digits)
        return Node("literal", value=plain * factor, column=token.column or 1)

    def string(self, items: list[Token]) -> Node:
        return Node("literal", value=str(items[0][1:-1]), column=items[0].column or 1)

    def true(self, _: list[Token]) -> Node:
        return Node("literal", value=True)

    def false(self, _: list[Token]) -> Node:
        return Node("literal", value=False)

    def null(self, _: list[Token]) -> Node:
        return Node("literal", value=None)

    def name(self, items: list[Token]) -> Node:
        return Node("name", text=str(items[0]), column=items[0].column or 1)

    def call(self, items: list[Token | Node | None]) -> Node:
        token = items[0]
        assert isinstance(token, Token)
        inner = tuple(item for item in items[1:] if isinstance(item, Node))
        single = token in ("ceil", "floor")
        if not inner or (single and len(inner) != 1):
            raise _MisfitError(f"{token} takes {'one value' if single else 'values'}", token.column or 1)
        return _node("call", inner, str(token), token.column or 1)

    def list_of(self, items: list[Node | None]) -> Node:
        return _node("list", tuple(item for item in items if item is not None))

    def compare(self, items: list[Node | Token]) -> Node:
        return self._operator("compare", items)

    def binary(self, items: list[Node | Token]) -> Node:
        return self._operator("binary", items)

    @staticmethod
    def _operator(kind: str, items: list[Node | Token]) -> Node:
        left, token, right = items
        assert isinstance(left, Node) and isinstance(token, Token) and isinstance(right, Node)
        return _node(kind, (left, right), str(token), token.column or 1)


def _node(kind: str, operands: tuple[Node, ...], text: str = "", column: int = 0) -> Node:
    depth = 1 + max((operand.depth for operand in operands), default=0)
    place = column or (operands[0].column if operands else 1)
    if depth > MAX_DEPTH:
        raise _MisfitError(f"nested deeper than {MAX_DEPTH}", place)
    return Node(kind, operands, text, None, place, depth)


def _plain(kind: str) -> Callable[[_Build, list[Node]], Node]:
    return lambda _self, items: _node(kind, tuple(items))


for _kind in ("if_else", "or_", "and_", "not_", "in_", "not_in", "is_null", "is_set", "negative"):
    setattr(_Build, _kind, _plain(_kind))


@lru_cache(maxsize=1)
def _parser() -> Lark:
    return Lark(_GRAMMAR, parser="lalr", transformer=_Build(), maybe_placeholders=False)


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
    raise _MisfitError(f"{value!r} is neither true nor false", node.column)


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
        raise _MisfitError("a list in a list", node.column)
    return value


def _number(value: Value, node: Node) -> int | float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _MisfitError(f"{value!r} is no number", node.column)
    return value


def _member(node: Node, value: Value, group: Value) -> bool | None:
    if group is None:
        return None
    if not isinstance(group, tuple):
        raise _MisfitError(f"{group!r} is no list", node.column)
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
