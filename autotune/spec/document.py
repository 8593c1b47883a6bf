"""A YAML file as plain values that remember their lines. Whatever a file can be wrong about ends as `SpecError`."""

from __future__ import annotations

import stat
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from autotune.errors import SpecError, SpecErrors

KeyPath: TypeAlias = tuple[str | int, ...]
Plain: TypeAlias = "bool | int | float | str | list[Plain] | dict[str, Plain] | None"

SIZE_LIMIT = 256 * 1024
"""Bytes. A study is a page or two; whatever is larger was given by mistake."""
VALUE_LIMIT = 20_000
"""Values after aliases are expanded, so that nested aliases cannot fill the memory."""
DEPTH_LIMIT = 40

_TAG = "tag:yaml.org,2002:"
_TRUE = frozenset({"true", "yes", "on", "y"})


@dataclass(frozen=True)
class Document:
    """What a file says.

    Attributes:
        file: the path as the user gave it.
        data: plain values.
        lines: 1-based line of every key and list item.
        sources: for values that do not come from the file: where they come from instead.
    """

    file: str
    data: Plain
    lines: dict[KeyPath, int] = field(default_factory=dict)
    sources: dict[KeyPath, str] = field(default_factory=dict)

    def where(self, path: KeyPath) -> tuple[str, int | None]:
        """File and line of `path`, or of the nearest part of it that is written down."""
        for end in range(len(path), -1, -1):
            if path[:end] in self.sources:
                return self.sources[path[:end]], None
            if path[:end] in self.lines:
                return self.file, self.lines[path[:end]]
        return self.file, None

    def where_key(self, key: str) -> tuple[str, int | None]:
        """The same for a dotted key, such as ``baseline.args.compilation_config.mode``."""
        written = [path for path in (*self.lines, *self.sources) if _leads_to(dotted(path), key)]
        return self.where(max(written, key=lambda path: len(dotted(path)), default=()))

    def line(self, path: KeyPath) -> int | None:
        """Line of `path`, or of the nearest part of it that stands in the file."""
        return self.where(path)[1]


def read_document(path: Path | str) -> Document:
    """Read one YAML file.

    Raises:
        SpecError: the file cannot be read, is no YAML, is empty or too large, or repeats a key.
    """
    file = str(path)
    return parse_document(_text(Path(path)), file)


def parse_document(text: str, file: str) -> Document:
    """Parse YAML text; `file` is only named in messages.

    Raises:
        SpecError: as for `read_document`.
    """
    node = _compose(text, file)
    if node is None:
        raise SpecError("the file is empty", file=file, line=1, hint="write a new one with `autotune init MODEL`")
    builder = _Builder(file)
    data = builder.build(node, (), 0)
    if builder.errors:
        raise builder.errors[0] if len(builder.errors) == 1 else SpecErrors(builder.errors)
    return Document(file, data, builder.lines)


def dotted(path: KeyPath) -> str:
    """``load.levels[0]`` from ``("load", "levels", 0)``."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else str(part)
    return text


def _leads_to(place: str, key: str) -> bool:
    return place == key or key.startswith((f"{place}.", f"{place}["))


def _text(path: Path) -> str:
    file = str(path)
    try:
        mode = path.stat().st_mode
        if stat.S_ISDIR(mode):
            inside = sorted(entry.name for entry in path.glob("*.yaml"))
            raise SpecError(
                "is a folder, not a file",
                file=file,
                hint=f"name one of its files: {', '.join(inside[:8])}" if inside else "name a YAML file",
            )
        if not stat.S_ISREG(mode):
            raise SpecError("is no regular file", file=file, hint="name a YAML file")
        with path.open("rb") as stream:
            raw = stream.read(SIZE_LIMIT + 1)
    except FileNotFoundError:
        raise SpecError("no such file", file=file, hint=_neighbours(path)) from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise SpecError(f"cannot be read: {reason}", file=file, hint="check the path and its permissions") from None
    if len(raw) > SIZE_LIMIT:
        raise SpecError(
            f"is larger than {SIZE_LIMIT // 1024} KiB",
            file=file,
            hint="is this the right file? A study is a page or two",
        )
    return _decoded(raw, file)


def _decoded(raw: bytes, file: str) -> str:
    if b"\0" in raw:
        raise SpecError("is a binary file, not YAML text", file=file, hint="save the file as UTF-8 text")
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        raise SpecError("is not UTF-8 text", file=file, line=line, hint="save the file as UTF-8") from None


def _neighbours(path: Path) -> str:
    from difflib import get_close_matches

    try:
        if path.is_symlink():
            return f"it is a link to {path.readlink()}, which is not there"
        names = [entry.name for entry in path.parent.glob("*.yaml")]
    except OSError:
        names = []
    near = get_close_matches(path.name, names, n=1, cutoff=0.5)
    if near:
        return f"did you mean {path.parent / near[0]}?"
    return f"write a new one with `autotune init MODEL --out {path}`"


def _compose(text: str, file: str) -> Node | None:
    yaml = YAML(typ="safe", pure=True)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            node: Node | None = yaml.compose(text)
    except RecursionError:
        raise SpecError("is nested too deeply", file=file, hint=f"at most {DEPTH_LIMIT} levels") from None
    except MarkedYAMLError as error:
        raise _syntax_error(error, text, file) from None
    except YAMLError as error:
        raise SpecError(f"is no YAML: {_first_line(error)}", file=file, hint="save the file as plain text") from None
    except Exception as error:  # the parser has bugs of its own on damaged input; the user gets a message all the same
        raise SpecError(f"is no YAML: {_first_line(error)}", file=file, hint="check the file's syntax") from None
    return node


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__


def _syntax_error(error: MarkedYAMLError, text: str, file: str) -> SpecError:
    mark = error.problem_mark or error.context_mark
    line = mark.line + 1 if mark is not None else None
    problem = (error.problem or error.context or "syntax error").strip().splitlines()[0]
    lines = text.splitlines()
    source = lines[line - 1] if line is not None and line <= len(lines) else ""
    if "\t" in source[: len(source) - len(source.lstrip())] or "'\\t'" in problem:
        return SpecError("a tab is used for indentation", file=file, line=line, hint="indent with spaces, not tabs")
    if "expected a single document" in problem or "but found another document" in (error.problem or ""):
        return SpecError("holds several YAML documents", file=file, line=line, hint="remove the lines with `---`")
    if "undefined alias" in problem:
        return SpecError(problem, file=file, line=line, hint="define it above with `&name`, or quote the text")
    if "mapping values are not allowed" in problem:
        return SpecError(
            "is no YAML: a `:` stands where none can be",
            file=file,
            line=line,
            hint="check the indentation, or quote the text that contains `: `",
        )
    start = error.context_mark
    began = ""
    if start is not None and error.context and start.line + 1 != line:
        began = f" ({error.context}, from line {start.line + 1})"
    hint = "check indentation, brackets and quotes at this line"
    return SpecError(f"is no YAML: {problem}{began}", file=file, line=line, hint=hint)


class _Builder:
    """Turns nodes into plain values, one by one, with bounds on size and depth."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.lines: dict[KeyPath, int] = {}
        self.errors: list[SpecError] = []
        self._count = 0

    def build(self, node: Node, path: KeyPath, depth: int) -> Plain:
        self._count += 1
        if self._count > VALUE_LIMIT:
            raise self._error(node, path[:3], "aliases expand to too many values", f"at most {VALUE_LIMIT} values")
        if depth > DEPTH_LIMIT:
            hint = f"at most {DEPTH_LIMIT} levels, and no alias to itself"
            raise self._error(node, path[:3], "is nested too deeply", hint)
        self.lines.setdefault(path, node.start_mark.line + 1)
        if isinstance(node, ScalarNode):
            return self._scalar(node, path)
        if isinstance(node, SequenceNode) and node.tag == f"{_TAG}seq":
            return [self.build(item, (*path, index), depth + 1) for index, item in enumerate(node.value)]
        if isinstance(node, MappingNode) and node.tag == f"{_TAG}map":
            return self._mapping(node, path, depth)
        self._refuse_tag(node, path)
        return None

    def _mapping(self, node: MappingNode, path: KeyPath, depth: int) -> dict[str, Plain]:
        own: dict[str, Plain] = {}
        merged: list[Node] = []
        for key_node, value_node in node.value:
            if key_node.tag == f"{_TAG}merge":
                merged.extend(value_node.value if isinstance(value_node, SequenceNode) else [value_node])
                continue
            key = self._key(key_node, path)
            if key is None:
                continue
            if key in own:
                first = self.lines[(*path, key)]
                self._note(key_node, (*path, key), f"is given twice, first in line {first}", "keep one of the two")
                continue
            self.lines[(*path, key)] = key_node.start_mark.line + 1
            own[key] = self.build(value_node, (*path, key), depth + 1)
        return {**self._merged(merged, path, depth), **own}

    def _merged(self, parts: list[Node], path: KeyPath, depth: int) -> dict[str, Plain]:
        """What `<<` brings in; of several mappings the first one wins."""
        result: dict[str, Plain] = {}
        for part in reversed(parts):
            value = self.build(part, path, depth + 1)
            if isinstance(value, dict):
                result.update(value)
            else:
                self._note(part, path, "`<<` needs a mapping", "merge an anchor of a mapping: `<<: *name`")
        return result

    def _key(self, node: Node, path: KeyPath) -> str | None:
        if not isinstance(node, ScalarNode):
            hint = "write `key: value`; quote text that has brackets or braces"
            self._note(node, path, "a key must be text", hint)
            return None
        value = self._scalar(node, path)
        if isinstance(value, str):
            return value
        self._note(node, path, f"the key {node.value!r} is no text", f'quote it: "{node.value}":')
        return None

    def _scalar(self, node: ScalarNode, path: KeyPath) -> Plain:
        kind = str(node.tag).removeprefix(_TAG)
        text = str(node.value)
        if kind in ("str", "timestamp", "merge", "value"):
            return text
        if kind == "null":
            return None
        if kind == "bool":
            return text.lower() in _TRUE
        if kind in ("int", "float"):
            return self._number(node, path, kind, text)
        self._refuse_tag(node, path)
        return None

    def _number(self, node: ScalarNode, path: KeyPath, kind: str, text: str) -> Plain:
        plain = text.replace("_", "").lower()
        try:
            if kind == "float":
                return float(plain.replace(".inf", "inf").replace(".nan", "nan"))
            unsigned = plain.lstrip("+-")
            return int(plain, 0) if unsigned[:2] in ("0x", "0o", "0b") else int(plain, 10)
        except (ValueError, OverflowError):
            shown = text if len(text) <= 40 else f"{text[:40]}..."
            self._note(node, path, f"{shown!r} is no number", "write a plain number, or quote the text")
            return None

    def _refuse_tag(self, node: Node, path: KeyPath) -> None:
        shown = str(node.tag).replace(_TAG, "!!")
        self._note(node, path, f"the YAML tag {shown!r} is not allowed", "write plain values without tags")

    def _note(self, node: Node, path: KeyPath, message: str, hint: str) -> None:
        """Keep a mistake and go on, so that the user sees all of them."""
        self.errors.append(self._error(node, path, message, hint))

    def _error(self, node: Node, path: KeyPath, message: str, hint: str) -> SpecError:
        return SpecError(message, file=self.file, line=node.start_mark.line + 1, key=dotted(path) or None, hint=hint)
