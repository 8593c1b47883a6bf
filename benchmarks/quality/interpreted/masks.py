"""A plug-in that vLLM loads in each of its processes: it lets Triton's interpreter run the kernel for grammars."""

from __future__ import annotations

from triton.runtime.interpreter import InterpreterBuilder, TensorHandle


def mend() -> None:
    """Hand masks on as booleans.

    The interpreter of Triton 3.9 may hold a mask (`int1`) as 32-bit numbers after `a & b`, and then refuses to store
    with it ("mask has unsupported dtype"). The numbers are 0 and 1 all the same.
    """
    refusing = InterpreterBuilder.create_masked_store

    def store(self: object, ptrs: object, value: object, mask: TensorHandle, cache_policy: object) -> object:
        return refusing(self, ptrs, value, TensorHandle(mask.data.astype(bool), mask.dtype), cache_policy)

    InterpreterBuilder.create_masked_store = store
