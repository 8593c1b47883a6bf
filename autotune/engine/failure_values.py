"""What a failure is: its class, whose fault it is, what to do, and the lines that say so."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from autotune.engine.kernellog import KernelFindings
from autotune.engine.stages import Stage
from autotune.space.config import FrozenValue

REASON_CHARS = 200
"""Of what pydantic complains; it lists every legal value."""


class Cause(StrEnum):
    """Whose fault it is."""

    CONFIG = "config"
    ENVIRONMENT = "environment"
    TRANSIENT = "transient"
    UNKNOWN = "unknown"


class Action(StrEnum):
    """What follows for the study."""

    LEARN = "learn"
    """Infeasible: tell the search."""
    QUARANTINE_VALUE = "quarantine_value"
    """Infeasible whatever else is set: never propose these values again."""
    RETRY_ONCE = "retry_once"
    """Nothing learnt: the same configuration once more."""
    STOP_IF_REPEATS = "stop_if_repeats"
    """Nothing learnt: once more, and stop the study if it happens again."""
    STOP = "stop"
    """Nothing learnt, and every other trial would fail as well."""


class Direction(StrEnum):
    """Which way to move a parameter."""

    UP = "up"
    DOWN = "down"
    CHANGE = "change"
    SET = "set"
    UNSET = "unset"
    LEGAL_SET = "legal_set"
    NONE = "none"


class FailureClass(StrEnum):
    """The kinds of failure. `NO_FAILURE`: the log shows none. `UNKNOWN`: it shows one that no signature knows."""

    NO_FAILURE = "no_failure"
    UNKNOWN = "unknown"
    ATTENTION_BACKEND_INVALID = "attention_backend_invalid"
    CLI_INVALID_VALUE = "cli_invalid_value"
    CLI_UNKNOWN_ARGUMENT = "cli_unknown_argument"
    COMPILE_CACHE_CORRUPT = "compile_cache_corrupt"
    COMPILE_FAILURE = "compile_failure"
    COMPILER_MISSING = "compiler_missing"
    CONFIG_VALIDATION = "config_validation"
    CUSTOM_ALLREDUCE_EXPANDABLE = "custom_allreduce_expandable"
    DEVICE_MEMORY_BUSY = "device_memory_busy"
    DISK_FULL = "disk_full"
    DOWNLOAD_FAILED = "download_failed"
    DRIVER_MISMATCH = "driver_mismatch"
    DTYPE_UNSUPPORTED = "dtype_unsupported"
    ENGINE_DEAD_GENERIC = "engine_dead_generic"
    EP_DIVISIBILITY = "ep_divisibility"
    EP_REQUIRED = "ep_required"
    FILE_LIMIT = "file_limit"
    FLASHINFER_BUILD = "flashinfer_build"
    FP8_UNSUPPORTED_DEVICE = "fp8_unsupported_device"
    GPU_HARDWARE = "gpu_hardware"
    GRAPH_SIZE_INCONSISTENT = "graph_size_inconsistent"
    HF_GATED = "hf_gated"
    HF_UNAUTHORIZED = "hf_unauthorized"
    HOST_OOM = "host_oom"
    ILLEGAL_MEMORY = "illegal_memory"
    INSTALL_BROKEN = "install_broken"
    KERNEL_IMAGE_INVALID = "kernel_image_invalid"
    KERNEL_JIT_FAILURE = "kernel_jit_failure"
    KERNEL_PACKAGE_MISSING = "kernel_package_missing"
    KILLED = "killed"
    KV_CACHE_TOO_SMALL = "kv_cache_too_small"
    KV_DTYPE_UNSUPPORTED = "kv_dtype_unsupported"
    MAMBA_CACHE_BLOCKS = "mamba_cache_blocks"
    MEMORY_REQUEST_TOO_LARGE = "memory_request_too_large"
    MODEL_LEN_OVER_LIMIT = "model_len_over_limit"
    MODEL_NOT_FOUND = "model_not_found"
    MODEL_UNSUPPORTED = "model_unsupported"
    NCCL_ERROR = "nccl_error"
    NCCL_TIMEOUT = "nccl_timeout"
    NO_GPU = "no_gpu"
    OOM = "oom"
    OOM_GRAPH_CAPTURE = "oom_graph_capture"
    OOM_KV_CACHE = "oom_kv_cache"
    OOM_PROFILE_RUN = "oom_profile_run"
    OOM_RUNTIME = "oom_runtime"
    OOM_SAMPLER_WARMUP = "oom_sampler_warmup"
    OOM_WARMUP = "oom_warmup"
    OOM_WEIGHTS = "oom_weights"
    PERMISSION_DENIED = "permission_denied"
    PORT_IN_USE = "port_in_use"
    PROCESS_LIMIT = "process_limit"
    QUANT_BLOCK_DIVISIBILITY = "quant_block_divisibility"
    QUANT_MISMATCH = "quant_mismatch"
    QUANT_UNSUPPORTED = "quant_unsupported"
    READY_TIMEOUT = "ready_timeout"
    RPC_TIMEOUT = "rpc_timeout"
    SCHED_LIMITS = "sched_limits"
    SHM_TOO_SMALL = "shm_too_small"
    STALL = "stall"
    TOKENIZER_BROKEN = "tokenizer_broken"
    TP_DIVISIBILITY = "tp_divisibility"
    TP_EXCEEDS_GPUS = "tp_exceeds_gpus"
    TRITON_RESOURCES = "triton_resources"
    UNSUPPORTED_COMBINATION = "unsupported_combination"
    WEIGHTS_CORRUPT = "weights_corrupt"
    WEIGHTS_MISSING = "weights_missing"
    WORKER_CRASH = "worker_crash"
    WORKER_DIED = "worker_died"


@dataclass(frozen=True, slots=True)
class Advice:
    """What would help.

    Attributes:
        parameter: canonical argument name, ``env.NAME`` for a variable, empty for the host itself.
        direction: which way.
        text: one sentence.
        value: the legal value or bound that the engine stated, as it wrote it; empty where it stated none.
    """

    parameter: str
    direction: Direction
    text: str
    value: str = ""


@dataclass(frozen=True, slots=True)
class DecidingLine:
    """A line of the log, redacted. ``number`` counts from 1; 0 for evidence from elsewhere (kernel log, exit code)."""

    number: int
    text: str


@dataclass(frozen=True, slots=True)
class Failure:
    """Why an engine failed and what follows from it."""

    failure_class: FailureClass
    cause: Cause
    action: Action
    lines: tuple[DecidingLine, ...] = ()
    advice: tuple[Advice, ...] = ()
    quarantine: tuple[tuple[str, FrozenValue], ...] = ()
    signature_id: str = ""
    stage: Stage | None = None
    """Where in the engine's life it failed."""

    @property
    def found(self) -> bool:
        """A failure was seen at all, known or not."""
        return self.failure_class is not FailureClass.NO_FAILURE

    @property
    def known(self) -> bool:
        """A signature knows it."""
        return self.found and self.failure_class is not FailureClass.UNKNOWN

    @property
    def reason(self) -> str:
        """One sentence for a table: the deciding line without its prefix, or the class."""
        if not self.lines:
            return self.failure_class.value.replace("_", " ")
        first, *more = (line.text.strip() for line in self.lines)
        if "validation error" not in first or not more:
            return first
        said = ": ".join(more[:2])  # pydantic names field and complaint on lines of their own
        return f"{first}: {said}" if len(said) <= REASON_CHARS else f"{first}: {said[:REASON_CHARS]}..."


@dataclass(frozen=True, slots=True)
class FailureContext:
    """What the log cannot say and the caller knows. Everything is optional.

    Attributes:
        idle_free_gib: free memory of the device (or host, on CPUs) in GiB with nothing of ours on it, measured before.
        requested: arguments and ``env.NAME`` variables the engine was started with.
        kernel: findings of the kernel log since the start.
        xids: Xid codes that NVML reported since the start.
        ecc_uncorrected: uncorrectable ECC errors that NVML counted since the start.
        elapsed_s: seconds from the start to the failure.
        ready_timeout_s: vLLM's own time-out of the start (``VLLM_ENGINE_READY_TIMEOUT_S``).
        stopped_by_us: we ended the engine; its exit code says nothing.
    """

    idle_free_gib: float | None = None
    requested: Mapping[str, FrozenValue] = field(default_factory=dict)
    kernel: KernelFindings = field(default_factory=KernelFindings)
    xids: tuple[int, ...] = ()
    ecc_uncorrected: int = 0
    elapsed_s: float | None = None
    ready_timeout_s: float = 600.0
    stopped_by_us: bool = False
