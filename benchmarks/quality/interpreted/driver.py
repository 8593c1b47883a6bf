"""The driver half of a Triton back end named `cpu`. vLLM wants one to be there before it takes Triton on a CPU."""

from __future__ import annotations

import torch
from triton.backends.compiler import GPUTarget
from triton.backends.driver import DriverBase


class Interpreted(DriverBase):
    def __init__(self) -> None:
        pass

    @classmethod
    def is_active(cls) -> bool:
        return True

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cpu", "interpreted", 32)

    def get_active_torch_device(self) -> torch.device:
        return torch.device("cpu")


Interpreted.__abstractmethods__ = frozenset()
