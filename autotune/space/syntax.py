"""The grammar of a space's expressions, and the syntax tree that parsing makes of a text."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

from lark import Lark, Token, Transformer, UnexpectedCharacters, UnexpectedEOF, UnexpectedInput, UnexpectedToken
from lark.exceptions import LarkError, VisitError

from autotune.space.config import FrozenValue

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


@dataclass(frozen=True, slots=True)
class Node:
    """A node of the syntax tree: an operation over operands, a literal (`value`) or a name (`text`)."""

    kind: str
    operands: tuple[Node, ...] = ()
    text: str = ""
    value: FrozenValue = None
    column: int = 1
    depth: int = 1


class MisfitError(Exception):
    """What is wrong with an expression, and at which column."""

    def __init__(self, message: str, column: int) -> None:
        super().__init__(message)
        self.message, self.column = message, column


def parse_tree(text: str) -> Node:
    """Parse a text.

    Raises:
        MisfitError: it is no expression.
    """
    if len(text) > MAX_LENGTH:
        raise MisfitError(f"has {len(text)} characters; at most {MAX_LENGTH} are read", 1)
    try:
        root = _parser().parse(text)
    except UnexpectedEOF as error:
        raise MisfitError("ends too early", len(text) + 1) from error
    except UnexpectedInput as error:
        ended = isinstance(error, UnexpectedToken) and error.token.type == "$END"
        raise MisfitError(_unexpected(error), len(text) + 1 if ended else max(1, error.column)) from error
    except VisitError as error:
        inner = error.orig_exc
        raise inner if isinstance(inner, MisfitError) else MisfitError(str(inner), 1) from error
    except (LarkError, ValueError, ArithmeticError) as error:
        raise MisfitError(str(error), 1) from error
    assert isinstance(root, Node)
    return root


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
            raise MisfitError(f"{unit!r} is no unit (there are {', '.join(_UNITS)})", token.column or 1)
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
            raise MisfitError(f"{token} takes {'one value' if single else 'values'}", token.column or 1)
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
        raise MisfitError(f"nested deeper than {MAX_DEPTH}", place)
    return Node(kind, operands, text, None, place, depth)


def _plain(kind: str) -> Callable[[_Build, list[Node]], Node]:
    return lambda _self, items: _node(kind, tuple(items))


for _kind in ("if_else", "or_", "and_", "not_", "in_", "not_in", "is_null", "is_set", "negative"):
    setattr(_Build, _kind, _plain(_kind))


@lru_cache(maxsize=1)
def _parser() -> Lark:
    return Lark(_GRAMMAR, parser="lalr", transformer=_Build(), maybe_placeholders=False)
