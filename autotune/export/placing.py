"""Finds out what to change where in an adopted file, so that an argument has a new value."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from itertools import pairwise

from autotune.adopt.format_facts import format_facts
from autotune.adopt.traced import BARE, RAW
from autotune.adopt.values import Adopted, EnvSetting, Insertion, Line, LineStyle, Place, Setting
from autotune.adopt.words import Word
from autotune.export.edits import Edit
from autotune.export.embed import for_shell, for_yaml, scalar_at, scalars_of, yaml_item, yaml_value
from autotune.space.arguments import ArgumentTable
from autotune.space.argv import to_argv, to_yaml_mapping
from autotune.space.config import EngineConfig, FrozenValue

Edits = tuple[Edit, ...]


class Placing:
    """Edits of one adopted file. Every method gives None where the file has no safe place."""

    def __init__(self, adopted: Adopted, table: ArgumentTable) -> None:
        self.adopted, self.table, self.text = adopted, table, adopted.text
        self.scalars = scalars_of(adopted)
        self.compose = adopted.format == "compose"
        self.extra_opened = False

    def edits(self, head: str, values: Mapping[str, FrozenValue], whole: Mapping[str, FrozenValue]) -> Edits | None:
        """What makes the argument `head` say `whole`; `values` are those names that change."""
        places = [place for place in self.adopted.places if place.name == head]
        if not places:
            return self._add(whole)
        if not whole:
            return self._joined([self._remove(place) for place in places])
        dotted = {place.names[0]: place for place in places if len(place.names) == 1 and "." in place.names[0]}
        if all(name in dotted and self._is_dotted(dotted[name]) for name in values):
            made = [
                self._remove(dotted[name]) if value is None else self._set(dotted[name], {name: value}, dotted=True)
                for name, value in values.items()
            ]
            return self._joined(made)
        last = places[-1]
        if any(self._is_dotted(place) for place in places):
            return self._add_dotted(values, last)
        if last.setting is not None and last.setting.key[0] < 0:  # the key stands in another file
            return self._add(whole)
        return self._set(last, self._merged(last, values, whole), dotted=False)

    # -- variables -----------------------------------------------------------------------------------------------

    def env_edits(self, name: str, value: str) -> Edits | None:
        """What gives a variable a new value."""
        known = next((item for item in self.adopted.reading.env if item.name == name), None)
        if known is not None:
            return self._change_env(known, value)
        insertion = self.adopted.reading.env_insertion
        if insertion is None:
            return None
        quoted = json.dumps(value)
        shell = f"{name}={shlex.quote(value)}"
        style = self.adopted.reading.env_style
        if style == "pairs":
            inner = insertion.before.replace("- ", "  ", 1) if "- " in insertion.before else "\n"
            flow = insertion.before == ", "
            text = f"{{name: {name}, value: {quoted}}}" if flow else f"name: {name}{inner}value: {quoted}"
        elif style == "assignments":
            text = yaml_item(f"{name}={value}")
        elif style == "mapping":
            text = f"{name}: {quoted}"
        elif style == "options":
            text = f"-e {shell}"
        else:
            text = f"Environment={name}={value}" if style == "unit" else f"export {shell}"
        return (Edit(insertion.offset, insertion.offset, insertion.before + text + insertion.after),)

    def _change_env(self, known: EnvSetting, value: str) -> Edits | None:
        if known.span is None:
            return None
        start, end = known.span
        scalar = scalar_at(self.scalars, start, end)
        if scalar is not None and start == scalar.start and scalar.style in ("'", '"'):
            return (Edit(start, end, json.dumps(value)),)
        if scalar is not None and scalar.style == "" and (start, end) == (scalar.start, scalar.end):
            return (Edit(start, end, json.dumps(value)),)
        if scalar is None and not re.fullmatch(r"[\w./:=,@%+-]*", value):
            return None
        text = for_yaml(value, scalar, start, end, compose=self.compose)
        return (Edit(start, end, text),) if text is not None else None

    # -- nested --------------------------------------------------------------------------------------------------

    def _merged(
        self, place: Place, values: Mapping[str, FrozenValue], whole: Mapping[str, FrozenValue]
    ) -> Mapping[str, FrozenValue]:
        """What a JSON value says already, unknown keys too, with the changes laid over it."""
        text = place.setting.value if place.setting is not None else place.words[-1].plain.partition("={")
        if isinstance(text, tuple):
            text = "{" + text[2] if text[1] else text[0]
        try:
            written = json.loads(text) if isinstance(text, str) else text
            before = EngineConfig.of({place.name: written}).args if isinstance(written, dict) else ()
        except (ValueError, TypeError):
            return whole
        merged = {**dict(before), **values}
        return {name: value for name, value in merged.items() if value is not None} if before else whole

    # -- change --------------------------------------------------------------------------------------------------

    def _set(self, place: Place, values: Mapping[str, FrozenValue], *, dotted: bool) -> Edits | None:
        if place.setting is not None:
            return self._set_key(place, place.setting, values)
        line = self.adopted.reading.line
        if line is None:
            return None
        tokens = self._tokens(values) if not dotted else [self._dotted_value(next(iter(values.values())))]
        if not tokens:
            return self._remove(place)
        renamed = place.written != place.name and not dotted
        flag, values_of_flag = place.words[0], place.words[1:]
        if dotted or (len(tokens) == 2 and not renamed):
            if not values_of_flag and "=" in flag.plain:
                at = flag.plain.index("=") + 1
                return self._replace(flag, tokens[-1], at, line)
            if len(values_of_flag) == 1:
                return self._replace(values_of_flag[0], tokens[-1], 0, line)
        if len(tokens) == 1 and len(place.words) == 1 and "=" not in flag.plain:
            return self._replace(flag, tokens[0], 0, line)
        return self._rewrite(place, tokens, line)

    def _replace(self, word: Word, value: str, offset: int, line: Line) -> Edits | None:
        """Put `value` where the characters of a word from `offset` on stand."""
        part = word.text[offset:]
        span = part.span
        if span is not None:
            start, end = span
            quoting = part.quoting[0]
        elif offset == 0 and word.start >= 0 and _style((word,), line) != "shell":  # the whole item of a list
            return (Edit(word.start, word.end, self._items([value], line)[0]),)
        elif offset == 0 and word.start >= 0:
            start, end, quoting = word.start, word.end, BARE
        else:
            return None
        text = self._embedded(value, quoting, start, end)
        return (Edit(start, end, text),) if text is not None else None

    def _embedded(self, value: str, quoting: str, start: int, end: int) -> str | None:
        shell = for_shell(value, quoting)
        scalar = scalar_at(self.scalars, start, end)
        if shell is None or (scalar is None and not self.scalars):
            return shell
        return for_yaml(shell, scalar, start, end, compose=self.compose)

    def _rewrite(self, place: Place, tokens: Sequence[str], line: Line) -> Edits | None:
        """Write the whole argument anew where it stands, with the white space that separates its words."""
        words = place.words
        if any(word.start < 0 or word.via for word in words):
            return None
        start, end = words[0].start, words[-1].end
        if any(a.end > b.start for a, b in pairwise(words)):
            return None
        if _style(words, line) == "shell":
            text = self._embedded(" ".join(map(shlex.quote, tokens)), ".", start, end)
            return (Edit(start, end, text),) if text is not None else None
        separator = self.text[words[0].end : words[1].start] if len(words) > 1 else self._separator(line)
        if separator is None:
            return None
        return (Edit(start, end, separator.join(self._items(tokens, line))),)

    def _separator(self, line: Line) -> str | None:
        return line.insertion.before if line.insertion is not None else None

    def _set_key(self, place: Place, setting: Setting, values: Mapping[str, FrozenValue]) -> Edits | None:
        if setting.key[0] < 0:
            return None
        value = self._key_value(setting, values)
        if value is None:
            return None
        name = place.name.replace("_", "-") if "-" in setting.spelling else place.name
        keeps = setting.own or (place.written == setting.spelling and setting.name == place.name)
        edits = [] if keeps else [Edit(*setting.key, name)]
        before = self.text[setting.span[0] : setting.span[0] + 1]
        text = yaml_value(value)
        if before in ("'", '"') and not isinstance(value, dict | list):
            shown = value if isinstance(value, str) else text
            text = json.dumps(shown) if before == '"' else "'" + shown.replace("'", "''") + "'"
        return (*edits, Edit(*setting.span, text))

    def _key_value(self, setting: Setting, values: Mapping[str, FrozenValue]) -> object:
        mapping = to_yaml_mapping(EngineConfig(tuple(sorted(values.items()))))
        value = next(iter(mapping.values()), None)
        if isinstance(value, dict) and isinstance(setting.value, str):
            return json.dumps(value, separators=(",", ":"))
        return value

    # -- remove --------------------------------------------------------------------------------------------------

    def _remove(self, place: Place) -> Edits | None:
        if place.setting is not None:
            return self._remove_key(place.setting) if place.setting.key[0] >= 0 else None
        line = self.adopted.reading.line
        if line is None or any(word.start < 0 or word.via for word in place.words):
            return None
        start, end = place.words[0].start, place.words[-1].end
        if any(a.end > b.start for a, b in pairwise(place.words)):
            return None
        return (self._cut(start, end, _style(place.words, line)),)

    def _cut(self, start: int, end: int, style: LineStyle) -> Edit:
        before = self.text[:start]
        if style == "items":
            return self._cut_lines(start, end)
        if style == "flow":
            lead = re.search(r",\s*$", before)
            if lead:
                return Edit(lead.start(), end, "")
            trail = re.match(r"\s*,\s*", self.text[end:])
            return Edit(start, end + (trail.end() if trail else 0), "")
        lead = re.search(r"(?:[ \t]|\\?\r?\n)+$", before)
        return Edit(lead.start() if lead else start, end, "")

    def _cut_lines(self, start: int, end: int) -> Edit:
        line_start = self.text.rfind("\n", 0, start) + 1
        line_end = self.text.find("\n", end)
        line_end = len(self.text) if line_end < 0 else line_end + 1
        return Edit(line_start, line_end, "")

    def _remove_key(self, setting: Setting) -> Edits | None:
        line_start = self.text.rfind("\n", 0, setting.key[0]) + 1
        if self.text[line_start : setting.key[0]].strip():  # a flow mapping, or the first key of a list item
            return None
        return (self._cut_lines(setting.key[0], max(setting.span[1], setting.key[1])),)

    # -- add -----------------------------------------------------------------------------------------------------

    def _add(self, values: Mapping[str, FrozenValue]) -> Edits | None:
        reading = self.adopted.reading
        tokens = self._tokens(values)
        if not tokens:
            return None
        if reading.settings_insertion is not None and any(not s.own and s.key[0] >= 0 for s in reading.settings):
            return self._add_key(values, reading.settings_insertion)
        own = [setting for setting in reading.settings if setting.own and setting.key[0] >= 0]
        if own and (made := self._add_own(values, own)) is not None:
            return made
        line = reading.line
        if line is not None and line.insertion is not None:
            return self._add_tokens(tokens, line, line.insertion)
        if self.adopted.format == "production-stack" and not own and reading.settings_insertion is not None:
            return self._open_section(tokens, reading.settings_insertion)
        return self._add_extra(tokens, own) if own else None

    def _open_section(self, tokens: Sequence[str], at: Insertion) -> Edits:
        """The chart's section for vLLM where a file has none; the chart then needs prefix caching to be said."""
        opening = "" if self.extra_opened else f"{at.before}vllmConfig:{at.before}  enablePrefixCaching: true"
        opening += "" if self.extra_opened else f"{at.before}  extraArgs:"
        self.extra_opened = True
        items = ["=".join(tokens)] if len(tokens) == 2 else list(tokens)
        text = opening + "".join(f"{at.before}    - {yaml_item(item)}" for item in items)
        return (Edit(at.offset, at.offset, text, order=1),)

    def _add_tokens(self, tokens: Sequence[str], line: Line, at: Insertion) -> Edits | None:
        if line.style == "shell":
            text = self._embedded(" ".join(map(shlex.quote, tokens)), ".", at.offset, at.offset)
            return (Edit(at.offset, at.offset, at.before + text),) if text is not None else None
        text = "".join(at.before + item for item in self._items(tokens, line))
        return (Edit(at.offset, at.offset, text),)

    def _items(self, tokens: Sequence[str], line: Line) -> list[str]:
        parts = list(tokens)
        if line.joined and len(parts) == 2:
            parts = ["=".join(parts)]
        if self.compose:
            parts = [part.replace("$", "$$") for part in parts]
        return [yaml_item(part, flow=line.style == "flow") for part in parts]

    def _add_key(self, values: Mapping[str, FrozenValue], at: Insertion) -> Edits:
        mapping = to_yaml_mapping(EngineConfig(tuple(sorted(values.items()))))
        text = "".join(f"{at.before}{name}: {yaml_value(value)}" for name, value in mapping.items())
        return (Edit(at.offset, at.offset, text),)

    def _add_own(self, values: Mapping[str, FrozenValue], own: Sequence[Setting]) -> Edits | None:
        """One more key beside the chart's own keys, where the chart has one for this argument."""
        if len(values) != 1:
            return None
        (name, value), last = next(iter(values.items())), own[-1]
        siblings = {path[-1] for path, argument in format_facts().keys.items() if argument == name}
        known = {path[-1]: path[:-1] for path in format_facts().keys}
        parent = known.get(last.spelling)
        spelling = next((key for key in sorted(siblings) if known.get(key) == parent), None)
        if spelling is None:
            return None
        return (Edit(last.span[1], last.span[1], f"{self._lead(last)}{spelling}: {yaml_value(value)}"),)

    def _add_extra(self, tokens: Sequence[str], own: Sequence[Setting]) -> Edits | None:
        """A list of extra arguments beside the chart's own keys."""
        if not any(path[-1] == own[-1].spelling and path[0] == "vllmConfig" for path in format_facts().keys):
            return None
        lead = self._lead(own[-1])
        opening = "" if self.extra_opened else f"{lead}extraArgs:"
        self.extra_opened = True
        items = ["=".join(tokens)] if len(tokens) == 2 else list(tokens)
        text = opening + "".join(f"{lead}  - {yaml_item(item)}" for item in items)
        return (Edit(own[-1].span[1], own[-1].span[1], text, order=1),)

    def _lead(self, setting: Setting) -> str:
        line_start = self.text.rfind("\n", 0, setting.key[0]) + 1
        return "\n" + " " * (setting.key[0] - line_start)

    def _add_dotted(self, values: Mapping[str, FrozenValue], place: Place) -> Edits | None:
        """More nested settings in the dotted form that the file uses."""
        line = self.adopted.reading.line
        if line is None or line.insertion is None or any(value is None for value in values.values()):
            return None
        flag = place.words[0].plain.partition(".")[0] if place.words else "--" + place.name.replace("_", "-")
        tokens = [f"{flag}.{name.partition('.')[2]}={self._dotted_value(value)}" for name, value in values.items()]
        return self._add_tokens(tokens, line, line.insertion)

    # -- words ---------------------------------------------------------------------------------------------------

    def _tokens(self, values: Mapping[str, FrozenValue]) -> list[str]:
        tokens = to_argv(EngineConfig(tuple(sorted(values.items()))), self.table)
        return [_compact(token) for token in tokens]

    def _dotted_value(self, value: FrozenValue) -> str:
        if isinstance(value, str):
            return value
        return json.dumps(list(value) if isinstance(value, tuple) else value, separators=(",", ":"))

    def _is_dotted(self, place: Place) -> bool:
        return bool(place.words) and "." in place.words[0].plain.partition("=")[0]

    def _joined(self, made: Sequence[Edits | None]) -> Edits | None:
        return None if None in made else tuple(edit for edits in made if edits is not None for edit in edits)


def _style(words: Sequence[Word], line: Line) -> LineStyle:
    """How these words are written; a script and a list of items may bring one command line together."""
    return "shell" if any(set(word.text.quoting) - {RAW} for word in words) else line.style


def _compact(token: str) -> str:
    """JSON without blanks: it survives in a plain YAML scalar."""
    if not token.startswith(("{", "[")):
        return token
    try:
        return json.dumps(json.loads(token), separators=(",", ":"))
    except ValueError:
        return token
