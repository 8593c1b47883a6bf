docker run -d --name vllm --gpus '"device=0,1"' --ipc=host -p 8000:8000 \
  --env-file ./vllm.env -e "HF_TOKEN=$HF_TOKEN" --env VLLM_LOGGING_LEVEL=INFO \
  -v ~/.cache/huggingface:/root/.cache/huggingface --entrypoint /bin/bash \
  vllm/vllm-openai:v0.28.0 \
  -c 'pip install foo && vllm serve Qwen/Qwen3-8B -tp 2 -O.cudagraph_mode=FULL --max-num-seqs=512 --no-async-scheduling'
