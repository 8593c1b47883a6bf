start() {
  local model=$1; shift
  local port=$1; shift
  vllm serve "$model" --port "$port" "$@"
}
start Qwen/Qwen3-8B 8000 --max-num-seqs 64 --max-model-len 8192
