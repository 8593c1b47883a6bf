"""What the engine says about itself: vLLM's configuration sections for /server_info and its log."""

from __future__ import annotations

from collections.abc import Mapping

from .config import EngineSettings

Section = dict[str, object]

_TORCH_DTYPES = {"bf16": "torch.bfloat16", "fp16": "torch.float16", "fp32": "torch.float32"}


def sections(settings: EngineSettings, model: str) -> Mapping[str, Section]:
    """The configuration by vLLM's classes, as ``/server_info?config_format=json`` lists it."""
    s = settings
    return {
        "model_config": {
            "model": model,
            "max_model_len": s.max_model_len,
            "dtype": _TORCH_DTYPES[s.dtype],
            "quantization": s.quantization,
            "enforce_eager": s.enforce_eager,
            "seed": s.seed,
            "max_logprobs": s.max_logprobs,
        },
        "cache_config": {
            "block_size": s.block_size,
            "gpu_memory_utilization": s.gpu_memory_utilization,
            "cache_dtype": s.kv_cache_dtype,
            "enable_prefix_caching": s.prefix_caching,
            "kv_cache_memory_bytes": s.kv_cache_memory_bytes,
        },
        "scheduler_config": {
            "max_num_seqs": s.max_num_seqs,
            "max_num_batched_tokens": s.max_num_batched_tokens,
            "long_prefill_token_threshold": s.long_prefill_token_threshold,
            "enable_chunked_prefill": s.chunked_prefill,
            "policy": s.scheduling_policy,
            "async_scheduling": s.async_scheduling,
            "stream_interval": s.stream_interval,
        },
        "parallel_config": {
            "tensor_parallel_size": s.tensor_parallel,
            "pipeline_parallel_size": s.pipeline_parallel,
            "data_parallel_size": s.data_parallel,
            "enable_expert_parallel": s.expert_parallel,
        },
        "compilation_config": {
            "mode": 3 if s.compiled else 0,
            "cudagraph_mode": s.graph_mode,
            "cudagraph_capture_sizes": list(s.graph_sizes),
            "max_cudagraph_capture_size": s.graph_sizes[-1] if s.graph_sizes else 0,
        },
    }


def config_line(settings: EngineSettings, model: str, served: str) -> str:
    """The settings of vLLM's line ``Initializing a V1 LLM engine ... with config``."""
    parts = sections(settings, model)
    named = parts["model_config"], parts["cache_config"], parts["parallel_config"], parts["scheduler_config"]
    model_config, cache, parallel, scheduler = named
    words = {
        "model": repr(model),
        "dtype": model_config["dtype"],
        "max_seq_len": model_config["max_model_len"],
        "tensor_parallel_size": parallel["tensor_parallel_size"],
        "pipeline_parallel_size": parallel["pipeline_parallel_size"],
        "data_parallel_size": parallel["data_parallel_size"],
        "quantization": model_config["quantization"],
        "enforce_eager": model_config["enforce_eager"],
        "kv_cache_dtype": cache["cache_dtype"],
        "seed": model_config["seed"],
        "served_model_name": served,
        "enable_prefix_caching": cache["enable_prefix_caching"],
        "enable_chunked_prefill": scheduler["enable_chunked_prefill"],
        "simulated": True,
    }
    return ", ".join(f"{name}={value}" for name, value in words.items())
