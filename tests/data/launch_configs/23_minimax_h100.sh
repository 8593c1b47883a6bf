#!/usr/bin/env bash
export PYTHONNOUSERSITE=1
PORT=${PORT:-8888}

if [ "$EP_SIZE" -gt 1 ]; then
  EP=" --enable-expert-parallel"
else
  EP=" "
fi

set -x
vllm serve MiniMaxAI/MiniMax-M2.5 --port $PORT \
--tensor-parallel-size=$TP \
$EP \
--gpu-memory-utilization 0.90 \
--trust-remote-code \
--enable-auto-tool-choice --tool-call-parser minimax_m2 \
--reasoning-parser minimax_m2_append_think \
--compilation-config '{"mode":3,"pass_config":{"fuse_minimax_qk_norm":true}}' > $SERVER_LOG 2>&1 &
