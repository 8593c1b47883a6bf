"""Where commands print to: a console that shows text as it is."""

from __future__ import annotations

from rich.console import Console


def terminal(*, stderr: bool = False, markup: bool = False) -> Console:
    """A console without emoji, and without markup in plain strings unless a command asks for it and escapes the rest.

    Rich takes a word between colons for an emoji: a mistake in line 100 (``study.yaml:100: load``) was printed with
    one in place of its line. Brackets in a path or in a description would be taken for a style.
    """
    return Console(stderr=stderr, emoji=False, markup=markup, highlight=False)
