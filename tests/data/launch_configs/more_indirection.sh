#!/bin/bash
MODEL_DIR=${MODEL_DIR:-/models}
MODEL_NAME=llama-70b
MODEL_PATH="$MODEL_DIR/$MODEL_NAME"
GPU_NUM=${GPU_NUM:-$(nvidia-smi -L | wc -l)}
ARGS="--max-num-seqs 128 --max-num-batched-tokens 8192"
if [ "${QUANT:-fp8}" = "fp8" ]; then
  ARGS="$ARGS --quantization fp8 --kv-cache-dtype fp8"
fi
[ -n "$LORA" ] && ARGS+=" --enable-lora"
case "$MODEL_NAME" in
  llama*) ARGS+=" --enable-auto-tool-choice --tool-call-parser llama3_json" ;;
  *) ARGS+=" --enforce-eager" ;;
esac
nohup python3 -m vllm.entrypoints.openai.api_server --model $MODEL_PATH --tensor-parallel-size $GPU_NUM $ARGS --port ${PORT-8000} > vllm.log 2>&1 &
