"""One planned request."""

from __future__ import annotations

from dataclasses import dataclass

NAN = float("nan")


@dataclass(frozen=True, slots=True)
class Turn:
    """One planned request: lengths, prefix group (-1: none), planned time, and whether it follows the one before."""

    input_tokens: int
    output_tokens: int
    prefix: int = -1
    due: float = NAN
    follows: bool = False
    blocks: tuple[int, ...] = ()
    """Ids of shared blocks (traces), the first ones of the prompt."""
    block_tokens: int = 512
    images: int = 0
    """Images that go with the text."""
    text: str = ""
    """A prompt of the user's own, sent as it is."""
