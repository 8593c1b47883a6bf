#!/usr/bin/env bash
set -euo pipefail
export HF_TOKEN="$HF_SECRET"
export VLLM_ATTENTION_BACKEND='FLASHINFER'
MODEL="Qwen/Qwen3-8B"
: "${TP:=2}"
MAXLEN=$((32 * 1024))
EXTRA=(--enable-prefix-caching --max-num-seqs "256")
exec vllm serve "$MODEL" \
  --tensor-parallel-size="${TP}" \
  --max_model_len $MAXLEN \
  --gpu-memory-utilization '0.9''2' \
  --served-model-name "qwen" 'qwen3-8b' \
  --compilation-config '{"cudagraph_mode": "FULL_AND_PIECEWISE", "cudagraph_capture_sizes": [1,2,4,8]}' \
  "${EXTRA[@]}" \
  --override-generation-config "{\"temperature\": 0.7}" \
  2>&1 | tee "log-$(date +%s).txt"
