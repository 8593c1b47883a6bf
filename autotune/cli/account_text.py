"""What was never started and why, for `autotune show` and the end of a run."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from autotune.report.wording import value_text
from autotune.search.account import RefusedPoint, SpaceAccount


def print_account(console: Console, account: SpaceAccount) -> None:
    """Every configuration of the space under its head, and those that were refused by cause."""
    console.print()
    console.print(Text(account.sentence), soft_wrap=True)
    if not account.causes:
        return
    table = Table(box=None, header_style="dim", pad_edge=False)
    table.add_column("refused before a start", no_wrap=True)
    table.add_column("", justify="right")
    table.add_column("for example")
    table.add_column("what helps")
    for cause, count in account.causes:
        example = account.example(cause)
        table.add_row(cause.removeprefix("refused_"), f"{count:,}", Text(example.reason), Text(example.advice))
    console.print(table)


def print_refused(console: Console, account: SpaceAccount) -> None:
    """The refused configurations one by one."""
    table = Table(box=None, header_style="dim", pad_edge=False)
    table.add_column("refused before a start", no_wrap=True)
    table.add_column("configuration", overflow="fold")
    table.add_column("why")
    for one in account.refused:
        table.add_row(one.cause.removeprefix("refused_"), Text(_point(one)), Text(one.reason))
    console.print(table)
    left = account.refused_count - len(account.refused)
    if left > 0:
        console.print(Text(f"and {left:,} more", style="dim"))


def _point(one: RefusedPoint) -> str:
    """What the point sets; what it leaves to vLLM is `None` and would only hide that."""
    told = " ".join(f"{name}={value_text(value)}" for name, value in one.point if value is not None)
    return told or "all at their defaults"
