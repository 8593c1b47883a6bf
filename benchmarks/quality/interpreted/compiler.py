"""The compiler half of a Triton back end named `cpu`: never asked, because the interpreter runs every kernel."""

from __future__ import annotations

from triton.backends.compiler import BaseBackend


class Interpreted(BaseBackend):
    @staticmethod
    def supports_target(target: object) -> bool:
        return True


Interpreted.__abstractmethods__ = frozenset()
