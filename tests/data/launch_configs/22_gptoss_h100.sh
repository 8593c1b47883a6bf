#!/usr/bin/env bash
# Half of the arguments in a file that the script writes, half on the command line.
source "$(dirname "$0")/benchmark_lib.sh"

export PYTHONNOUSERSITE=1
export VLLM_MXFP4_USE_MARLIN=1
PORT=${PORT:-8888}
MAX_MODEL_LEN=10240

cat > config.yaml << EOF
no-enable-prefix-caching: true
max-cudagraph-capture-size: 2048
max-num-batched-tokens: 8192
max-model-len: $MAX_MODEL_LEN
EOF

vllm serve openai/gpt-oss-120b --host 0.0.0.0 --port $PORT \
    --config config.yaml \
    --gpu-memory-utilization 0.9 \
    --tensor-parallel-size $TP \
    --max-num-seqs $CONC > server.log 2>&1 &

SERVER_PID=$!
run_benchmark --num-prompts "$((CONC * 10))" --max-concurrency "$CONC" --backend vllm
