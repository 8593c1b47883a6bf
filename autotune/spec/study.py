"""The study file as typed values. Every field is documented here and nowhere else; the reference is made from it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Literal

from pydantic import Field, model_validator

from autotune.spec import checks
from autotune.spec.checks import Problem
from autotune.spec.engine import CommandSpec, SimulatedSpec, virtual_problems
from autotune.spec.expect import ExpectSpec
from autotune.spec.hardware import ClusterSpec, HardwareSpec
from autotune.spec.images import ImagesSpec
from autotune.spec.part import ArgValue, Part, Scalar
from autotune.spec.ramp import RampSpec
from autotune.spec.retune import RetuneSpec
from autotune.spec.space import LayoutSpec, ParameterSpec, SpaceSpec
from autotune.spec.stages import StartStage
from autotune.spec.topology import TopologySpec, topology_problems
from autotune.spec.units import Seconds, Share

__all__ = [
    "ArgValue",
    "BaselineSpec",
    "ClusterSpec",
    "CommandSpec",
    "ConfirmSpec",
    "EngineSpec",
    "ExpectSpec",
    "HardwareSpec",
    "ImagesSpec",
    "LayoutSpec",
    "LengthSpec",
    "LoadSpec",
    "ObjectiveSpec",
    "ParameterSpec",
    "Part",
    "PrefixSpec",
    "QualitySpec",
    "RampSpec",
    "RetuneSpec",
    "Scalar",
    "SearchSpec",
    "SimulatedSpec",
    "SloSpec",
    "SpaceSpec",
    "StudySpec",
    "TopologySpec",
    "TraceSpec",
    "WarmupSpec",
    "WindowSpec",
]


class EngineSpec(Part):
    """How the engine is started."""

    kind: Literal["vllm", "simulated", "endpoint", "command"] = "vllm"
    """`vllm` starts a process, `simulated` a stand-in, `command` a template; `endpoint` measures a running server."""
    python: str | None = None
    """Interpreter that has vLLM installed. Default: this one. `cpu` is the CPU engine that `make run` sets up."""
    args: dict[str, ArgValue] = Field(default_factory=dict)
    """Arguments that every trial gets and that are not tuned."""
    env: dict[str, str] = Field(default_factory=dict)
    """Environment variables of every trial. `${NAME}` is read from our own environment at start and never stored."""
    ready_timeout: Annotated[Seconds, Field(gt=0)] = 900.0
    """Longest time from start to the first answer."""
    phase_timeouts: dict[StartStage, Annotated[Seconds, Field(gt=0)]] = Field(default_factory=dict)
    """Longest silence of the engine's log in a stage of its start, such as `weights: 30m` for a slow disk."""
    hang_timeout: Annotated[Seconds, Field(gt=0)] = 60.0
    """No token for so long while requests run is a hang."""
    fast_start: bool = True
    """Use a standby interpreter, shared caches and fork where they are safe (see docs/concepts.md)."""
    live: bool = True
    """Change scheduler limits on the running engine where it can, instead of a restart."""
    url: str | None = None
    """For `endpoint`: the server's base URL."""
    api_key_env: str | None = None
    """For `endpoint`: name of the environment variable that holds the API key."""
    served_model: str | None = None
    """For `endpoint` and `command`: the model name to ask for. Default: the first one that /v1/models lists."""
    command: CommandSpec | None = None
    """For `command`: the templates."""
    simulate: SimulatedSpec | None = None
    """For `simulated`: the card and the speed."""

    @model_validator(mode="before")
    @classmethod
    def _simulated_defaults(cls, data: object) -> object:
        """A simulated engine always says which card it stands for."""
        if isinstance(data, dict) and data.get("kind") == "simulated" and data.get("simulate") is None:
            return {**data, "simulate": {}}
        return data

    @property
    def elsewhere(self) -> bool:
        """Whether a command starts the engine on another host."""
        return self.kind == "command" and self.command is not None and self.command.elsewhere

    @property
    def virtual(self) -> bool:
        """Whether a simulated engine runs in virtual time."""
        return self.simulate is not None and self.simulate.virtual

    def problems(self) -> Iterable[Problem]:
        return checks.engine_problems(self)


class BaselineSpec(Part):
    """What you run today. It is measured first and again at the end."""

    args: dict[str, ArgValue] = Field(default_factory=dict)
    """vLLM arguments of today's deployment. Empty: vLLM's defaults."""
    env: dict[str, str] = Field(default_factory=dict)
    """Environment of today's deployment."""

    def problems(self) -> Iterable[Problem]:
        return checks.reserved_problems(self.args, ("args",))


class RivalSpec(BaselineSpec):
    """A configuration that is proven beside the finalists, such as a published setting or the deployment before."""

    args: dict[str, ArgValue] = Field(default_factory=dict)
    """vLLM arguments, over `engine.args`."""
    env: dict[str, str] = Field(default_factory=dict)
    """Its environment."""


class LengthSpec(Part):
    """Token lengths of a prompt or an answer."""

    kind: Literal["fixed", "normal", "lognormal", "uniform", "empirical"] = "fixed"
    """Distribution."""
    mean: Annotated[float, Field(gt=0)] = 512
    """Mean length in tokens (the length itself for `fixed`)."""
    stdev: Annotated[float, Field(ge=0)] = 0
    """Standard deviation in tokens."""
    low: Annotated[int, Field(ge=1)] = 1
    """Shortest length."""
    high: Annotated[int, Field(ge=1)] | None = None
    """Longest length."""
    file: str | None = None
    """For `empirical`: a file with one length a line, or a histogram made by `autotune load from-metrics`."""

    def problems(self) -> Iterable[Problem]:
        return checks.length_problems(self)


class PrefixSpec(Part):
    """Shared prefixes: a stated share of the prompts begins with one of a few common texts."""

    count: Annotated[int, Field(ge=1)] = 8
    """How many different prefixes."""
    tokens: Annotated[int, Field(ge=1)] = 256
    """Length of each, counted in the prompt's length."""
    share: Share = 1.0
    """Share of requests that use one."""


class TraceSpec(Part):
    """Arrivals and lengths from a recorded trace."""

    file: str
    """Path of the trace."""
    format: Literal["mooncake", "azure", "burstgpt", "jsonl", "sharegpt"] = "jsonl"
    """Its format."""
    speed: Annotated[float, Field(gt=0)] = 1.0
    """Replay this many times faster."""
    limit: Annotated[int, Field(ge=1)] | None = None
    """Use only the first so many rows."""


class WarmupSpec(Part):
    """What runs before the measured window, at the measured load."""

    requests: Annotated[int, Field(ge=0)] | None = None
    """At least so many requests. Default: twice the concurrency, with more `turns` as many times as those."""
    max_duration: Seconds = 60.0
    """At most so long."""
    tolerance: Share = 0.05
    """Two consecutive windows must agree this well in output throughput."""


class WindowSpec(Part):
    """The measured window."""

    duration: Annotated[Seconds, Field(gt=0)] | None = None
    """Measure for so long."""
    requests: Annotated[int, Field(ge=1)] | None = None
    """Measure so many finished requests. With both, whichever comes last."""
    max_duration: Annotated[Seconds, Field(gt=0)] = 300.0
    """Never longer than this; a window cut short with too few requests is invalid."""

    def problems(self) -> Iterable[Problem]:
        return checks.window_problems(self)


class LoadSpec(Part):
    """The load. It is the same for every trial: same lengths, same arrival times, fresh content."""

    input_tokens: Annotated[int, Field(ge=1)] | LengthSpec = 512
    """Prompt length in tokens."""
    output_tokens: Annotated[int, Field(ge=1)] | LengthSpec = 128
    """Answer length in tokens (forced with ignore_eos)."""
    arrivals: Literal["closed", "constant", "poisson", "gamma", "bursts", "ramps", "trace"] = "closed"
    """`closed` keeps a number of requests in flight; the others are open loop at a rate in requests a second."""
    levels: list[Annotated[float, Field(gt=0)]] = Field(default_factory=lambda: [16.0], min_length=1)
    """Concurrencies (closed) or rates (open) that are measured on each engine start, in this order."""
    burstiness: Annotated[float, Field(gt=0)] = 1.0
    """For `gamma`: 1 is Poisson, below 1 is burstier."""
    burst: Annotated[int, Field(ge=2)] = 16
    """For `bursts`: requests that arrive at the same instant; bursts come at even intervals and make up the rate."""
    ramp: RampSpec = RampSpec()
    """For `ramps`: how the rate swings."""
    knee: Annotated[float, Field(gt=0, le=2)] | None = None
    """Place the load at this share of the baseline's saturation knee instead of `levels`."""
    api: Literal["completions", "chat"] = "completions"
    """Which route is used."""
    prefix: PrefixSpec | None = None
    """Shared prefixes."""
    images: ImagesSpec | None = None
    """For `api: chat` and a multimodal model: images in the prompts."""
    turns: Annotated[int, Field(ge=1)] = 1
    """Turns of a conversation; every turn repeats what was said before."""
    trace: TraceSpec | None = None
    """For `trace` arrivals."""
    warmup: WarmupSpec = WarmupSpec()
    """Before the window."""
    window: WindowSpec = WindowSpec(duration=20.0)
    """The measured window."""
    expect: ExpectSpec | None = None
    """What the profile takes for granted about preemptions and queue. Default: nothing; they are results."""
    request_timeout: Annotated[Seconds, Field(gt=0)] = 300.0
    """A request without an end after so long is an error."""
    seed: int = 1
    """Seed of lengths and arrivals (content is fresh in every trial)."""
    client_processes: Annotated[int, Field(ge=1, le=64)] = 1
    """Client processes."""
    itl_share: Annotated[float, Field(gt=0, le=1)] | None = None
    """Share of the requests of which the inter-token latency is taken, each chunk read when it comes. Default: all; in
    a closed loop of more than 64 streams 32 requests at a time. Every other metric takes all requests."""
    stop_hopeless: bool = True
    """Stop a level early when it cannot matter any more, and tell the search what is known."""

    def problems(self) -> Iterable[Problem]:
        return checks.load_problems(self)


class ObjectiveSpec(Part):
    """One thing to optimise."""

    metric: Literal["output_throughput", "total_throughput", "request_throughput", "goodput", "ttft", "tpot", "itl",
                    "e2e", "tokens_per_joule", "capacity"]  # fmt: skip
    """Which metric (docs/metrics.md has the formulas). `capacity` is the highest level that holds the SLOs."""
    direction: Literal["maximize", "minimize"] | None = None
    """Default: maximize for throughputs, goodput, capacity and tokens per joule; minimize for latencies."""
    percentile: Annotated[float, Field(gt=0, lt=100)] | None = None
    """For latencies. Default 95."""
    level: float | Literal["best", "last", "first", "area"] = "last"
    """Which load level counts: a value of `load.levels`, or the first, the last or the best one; `area` takes all of
    them (the mean over the load, docs/metrics.md)."""
    per_gpu: bool = False
    """Divide by the number of GPUs that the layout takes."""

    def problems(self) -> Iterable[Problem]:
        return checks.objective_problems(self)


class SloSpec(Part):
    """A limit that a configuration must hold."""

    metric: Literal["ttft", "tpot", "itl", "e2e"]
    """Which latency."""
    percentile: Annotated[float, Field(gt=0, lt=100)] = 95
    """Which percentile."""
    limit: Annotated[Seconds, Field(gt=0)]
    """The limit, such as 500ms."""


class QualitySpec(Part):
    """The gate that no recommended configuration may fail."""

    enabled: bool = True
    """Switch it off only where answers do not matter (dummy weights)."""
    kl_limit: Annotated[float, Field(gt=0)] = 0.02
    """Largest mean KL divergence from the baseline, nats per token (upper 95 % bound)."""
    perplexity_limit: Share = 0.01
    """Largest relative rise of perplexity (upper 95 % bound)."""
    agreement_limit: Share = 0.98
    """Smallest share of equal top-1 tokens where the baseline is sure."""
    documents: Annotated[int, Field(ge=4)] = 24
    """How many reference texts are scored."""
    positions: Annotated[int, Field(ge=16)] = 128
    """Scored positions per text."""
    reference: str | None = None
    """A reference file of an earlier study, or the URL of a server. Default: recorded from the baseline."""
    tasks: list[str] = Field(default_factory=list)
    """For finalists: lm-eval tasks (extra `quality`) or paths of JSONL files with questions and answers."""
    command: list[str] | None = None
    """For finalists: your own check; exit code 0 passes. It gets AUTOTUNE_URL, AUTOTUNE_MODEL and AUTOTUNE_API_KEY."""

    def problems(self) -> Iterable[Problem]:
        return checks.quality_problems(self)


class SearchSpec(Part):
    """How long and how to search."""

    proposer: Literal["auto", "tpe", "gp", "nsga2", "random", "grid", "local"] = "auto"
    """Who proposes."""
    trials: Annotated[int, Field(ge=1)] = 30
    """Measured configurations, the baseline included; confirmation comes on top."""
    wall_clock: Annotated[Seconds, Field(gt=0)] | None = None
    """Stop proposing after so long."""
    gpu_hours: Annotated[float, Field(gt=0)] | None = None
    """Stop proposing after so many GPU hours."""
    patience: Annotated[int, Field(ge=3)] | None = None
    """Stop after so many measured trials without a gain of the front's hypervolume."""
    seed: int = 0
    """Seed of the search, and of the noise of a simulated engine with a virtual clock."""
    experts: bool = True
    """Start with the baseline and known good settings for this card and model class."""
    sentinel_every: Annotated[int, Field(ge=0)] = 10
    """Measure the baseline again after so many trials to see drift; 0 never."""


class ConfirmSpec(Part):
    """How a winner is proven: fresh starts, interleaved with the baseline."""

    rounds: Annotated[int, Field(ge=0)] = 3
    """Rounds; 0 skips the confirmation, and then nothing is claimed."""
    finalists: Annotated[int, Field(ge=1)] = 3
    """Configurations besides the baseline."""
    margin: Share = 0.02
    """The lower bound of the gain must exceed this before an improvement is claimed."""
    minimise: bool = True
    """Undo every changed setting whose effect is within noise."""
    against: dict[str, RivalSpec] = Field(default_factory=dict)
    """Configurations by name that every round measures as well: the winner is compared with each, and may be one."""

    def problems(self) -> Iterable[Problem]:
        return checks.confirm_problems(self)


class StudySpec(Part):
    """A whole study."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]
    """Name of the study; its results go to `<name>/` beside the study file unless `storage` says otherwise."""
    model: Annotated[str, Field(min_length=1)]
    """Hugging Face id, a local folder, or a name the simulator knows."""
    revision: str | None = None
    """Revision of the model."""
    engine: EngineSpec = EngineSpec()
    """How the engine is started."""
    hardware: HardwareSpec = HardwareSpec()
    """What a trial may use."""
    topology: TopologySpec = TopologySpec()
    """One engine a trial, or several behind a router (see docs/layouts.md)."""
    baseline: BaselineSpec = BaselineSpec()
    """What you run today."""
    space: str | SpaceSpec = "h100-dense"
    """Name of a file in `search_spaces/`, a path, or the space itself."""
    load: LoadSpec = LoadSpec()
    """The load."""
    objectives: list[ObjectiveSpec] = Field(
        default_factory=lambda: [ObjectiveSpec(metric="output_throughput"), ObjectiveSpec(metric="ttft")],
        min_length=1,
        max_length=4,
    )
    """What is optimised. The first one decides which single configuration is recommended."""
    slos: list[SloSpec] = Field(default_factory=list)
    """Limits; a configuration that breaks one is not recommended."""
    quality: QualitySpec = QualitySpec()
    """The quality gate."""
    search: SearchSpec = SearchSpec()
    """The search."""
    confirm: ConfirmSpec = ConfirmSpec()
    """The proof."""
    retune: RetuneSpec | None = None
    """Looking at the result again on a schedule."""
    storage: str | None = None
    """Folder for the results. Or where the database is: `sqlite:///FILE` beside the study file, or a PostgreSQL URL."""

    def problems(self) -> Iterable[Problem]:
        yield from checks.study_problems(self)
        yield from topology_problems(self)
        yield from virtual_problems(self)


for _model in (EngineSpec, StudySpec):
    _model.model_rebuild()
