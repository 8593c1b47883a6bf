"""The expressions of a space: what they mean, and that nothing but `SpecError` ever comes out of them."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.errors import SpecError
from autotune.space.expression import parse_expression
from autotune.space.syntax import MAX_LENGTH

MEANINGS = [
    ("max_num_batched_tokens >= max_num_seqs", {"max_num_batched_tokens": 512, "max_num_seqs": 256}, True),
    ("a >= b", {"a": 1, "b": 2}, False),
    ("a >= b", {"a": 1}, None),
    ("not a < b", {"a": 1}, None),
    ("a < 1 or b == 2", {"b": 2}, True),
    ("a < 1 and b == 3", {"b": 2}, False),
    ("a < 1 and b == 2", {"b": 2}, None),
    ('quantization == "fp8"', {}, False),
    ('quantization != "fp8"', {}, True),
    ("a == b", {"a": 1}, None),
    ("(a + b) % 4 == 0", {"a": 4}, None),
    ("a is set", {"a": False}, True),
    ("a is null", {}, True),
    ("a is not null", {}, False),
    ('kv in [null, "fp8"]', {}, True),
    ('kv not in ["fp8"]', {"kv": "auto"}, True),
    ("flag == 1", {"flag": True}, False),
    ("flag == true", {"flag": True}, True),
    ("2 + 3 * 4 - 1", {}, 13),
    ("a - 1", {"a": 5}, 4),
    ("a-1", {"a": 5}, 4),
    ("-a // 2", {"a": 5}, -3),
    ("7 / 2", {}, 3.5),
    ("8 / 2", {}, 4),
    ("min(a, 3) + max([1, 2])", {"a": 9}, 5),
    ("ceil(a / 4)", {"a": 9}, 3),
    ("floor(2.9)", {}, 2),
    ("min(a, 3)", {}, None),
    ("1 if a else 2", {"a": False}, 2),
    ("1 if a else 2", {}, None),
    ("80GiB", {}, 80 * 2**30),
    ("500ms < 1s", {}, True),
    ("minimum + android", {"minimum": 1, "android": 2}, 3),
    ("model.num_experts > 0", {"model.num_experts": 8}, True),
]


@pytest.mark.parametrize(("text", "names", "value"), MEANINGS, ids=[case[0] for case in MEANINGS])
def test_it_means_what_it_says(text: str, names: dict[str, object], value: object) -> None:
    result = parse_expression(text).evaluate(names)  # type: ignore[arg-type]
    assert result == value
    assert type(result) is type(value)


@pytest.mark.parametrize(
    ("text", "column", "says"),
    [
        ("a >=", 5, "ends too early"),
        ("a $ b", 3, "'$' cannot stand here"),
        ("a b", 3, "'b' cannot stand here"),
        ("4 + 80foo", 5, "no unit"),
        ("", 1, "ends too early"),
        ("ceil(1, 2)", 1, "one value"),
        ("'a' < 3", 5, "is no number"),
        ("1 in 2", 1, "no list"),
    ],
)
def test_a_mistake_is_shown_at_its_place(text: str, column: int, says: str) -> None:
    with pytest.raises(SpecError) as raised:
        parse_expression(text).evaluate({})
    assert f"column {column}:" in raised.value.message
    assert says in raised.value.message


def test_a_mistyped_name_gets_the_nearest_one() -> None:
    expr = parse_expression("1 < max_num_seq")
    with pytest.raises(SpecError) as raised:
        expr.check_names({"max_num_seqs", "block_size"})
    assert "column 5" in raised.value.message
    assert "Did you mean `max_num_seqs`?" in (raised.value.hint or "")


def test_what_is_neither_true_nor_false_is_no_condition() -> None:
    with pytest.raises(SpecError, match="not true or false"):
        parse_expression("1 + 1").holds({})


@pytest.mark.parametrize("text", ["(" * 400 + "1" + ")" * 400, "not " * 240 + "true", "-" * 900 + "1", "a" * 5000])
def test_a_hostile_text_is_refused_or_read_but_never_breaks(text: str) -> None:
    try:
        parse_expression(text).evaluate({})
    except SpecError:
        assert len(text) > MAX_LENGTH or "nested deeper" in text or text[0] in "n-"


WORDS = ["a", "b.c", "and", "or", "not", "in", "is", "null", "set", "if", "else", "true", "false", "min", "max", "ceil",
         "floor", "(", ")", "[", "]", ",", "==", "!=", "<", "<=", ">", ">=", "+", "-", "*", "/", "//", "%", "1", "0",
         "2.5", "80GiB", "1e300", "9" * 40, "'x'", '"fp8"', "3zz", "$", ".", "\n"]  # fmt: skip
VALUES = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3) | st.tuples(st.integers())


@settings(max_examples=400, deadline=None)
@given(st.lists(st.sampled_from(WORDS), max_size=14).map(" ".join) | st.text(max_size=40), VALUES, VALUES)
def test_whatever_is_written_only_a_spec_error_comes_out(text: str, a: object, b: object) -> None:
    try:
        expr = parse_expression(text)
        expr.check_names({"a", "b.c"})
        expr.evaluate({"a": a, "b.c": b})  # type: ignore[dict-item]
        expr.holds({"a": a, "b.c": b})  # type: ignore[dict-item]
    except SpecError as error:
        assert str(error)
