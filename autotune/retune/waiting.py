"""What becomes of a version that is proven and not deployed yet. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from autotune.retune.ledger import Version
from autotune.retune.state import State, same_configuration


def out_of_date(state: State, version: Version, changes: Sequence[str]) -> str:
    """Why the evidence of a version does not hold any more; empty where it does.

    Args:
        state: the present.
        version: the one that waits.
        changes: what has changed since it was measured, one sentence each.
    """
    if version.before != state.current:
        return f"it was compared with version {version.before}, and version {state.current} is deployed now"
    return f"since it was measured, {'; '.join(changes)}" if changes else ""


def needs_a_person(state: State, version: Version, *, manual: bool, edits: str) -> str:
    """Why a version is not deployed without a person's agreement; empty where it may be.

    Args:
        state: the present.
        version: the one that waits.
        manual: the study asks for approval of every one.
        edits: what somebody did to the deployed files.
    """
    if manual:
        return "approval is manual"
    if state.held:
        return "its hooks have failed"
    for number in state.rejected:
        if same_configuration(state, number, version.number):
            return f"it is the configuration of version {number}, which a person has refused or rolled back"
    return edits
