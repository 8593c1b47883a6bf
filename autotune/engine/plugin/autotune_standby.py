"""An interpreter that has imported vLLM and waits for its command line. Runs in vLLM's environment, not in ours.

    python autotune_standby.py SOCKET [MODEL_DIR]

It imports what `vllm serve` and its engine process will need, touches no GPU, and listens on the Unix socket. One
connection brings one JSON line ``{"argv": [...], "env": {...}, "cwd": "...", "log": "..."}``; the answer is
``ready\\n``; from then on this process is `vllm serve`. It ends by itself when it must not be used.
"""

import contextlib
import importlib
import json
import os
import socket
import sys

MODULES = (
    "vllm.entrypoints.cli.main",
    "vllm.entrypoints.cli.serve",
    "vllm.entrypoints.openai.api_server",
    "vllm.engine.arg_utils",
    "vllm.v1.engine.async_llm",
    "vllm.v1.engine.core",
    "vllm.v1.engine.core_client",
    "vllm.v1.executor.multiproc_executor",
    "vllm.v1.executor.uniproc_executor",
    "vllm.v1.worker.gpu_worker",
    "vllm.v1.worker.gpu.model_runner",
    "vllm.v1.worker.gpu.warmup",
    "vllm.v1.worker.gpu_model_runner",
    "vllm.v1.attention.backends.flash_attn",
    "vllm.compilation.backends",
    "vllm.compilation.decorators",
    "vllm.model_executor.model_loader",
    "vllm.model_executor.warmup.kernel_warmup",
    "torch._dynamo",
    "torch._inductor.compile_fx",
    "transformers",
)
"""Names of several versions; one that this vLLM does not have is passed over."""
CLI = ("vllm.entrypoints.cli.benchmark.main", "vllm.entrypoints.cli.openai", "vllm.entrypoints.cli.run_batch")


def prepare(model: str) -> None:
    """Import everything; a module that is missing costs nothing but time later."""
    for name in (*MODULES, *CLI):
        with contextlib.suppress(Exception):
            importlib.import_module(name)
    if model:
        with contextlib.suppress(Exception):
            load_model_class(model)


def load_model_class(model: str) -> None:
    """Import the module that defines the model's architecture."""
    with open(os.path.join(model, "config.json"), encoding="utf-8") as file:
        names = json.load(file)["architectures"]
    registry = importlib.import_module("vllm.model_executor.models.registry").ModelRegistry
    for name in names:
        entry = registry.models.get(name)
        importlib.import_module(entry.module_name)


def gpu_untouched() -> bool:
    """A forked engine process could not use a GPU that this process had initialised."""
    torch = importlib.import_module("torch")
    return not torch.cuda.is_initialized()


def wait(path: str) -> dict:
    """The order. The socket appears only once it can be answered at once."""
    partial = path + ".partial"
    server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    server.bind(partial)
    server.listen(1)
    os.rename(partial, path)
    connection, _ = server.accept()
    with connection, server:
        data = b""
        while not data.endswith(b"\n"):
            block = connection.recv(1 << 16)
            if not block:
                sys.exit(3)
            data += block
        connection.sendall(b"ready\n")
    os.unlink(path)
    return json.loads(data)


def become(order: dict) -> None:
    """Take on the environment, the log and the command line of the order."""
    os.environ.clear()
    os.environ.update(order["env"])
    for folder in reversed(order["env"].get("PYTHONPATH", "").split(os.pathsep)):
        if folder and folder not in sys.path:
            sys.path.insert(0, folder)
    os.chdir(order["cwd"])
    log = os.open(order["log"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    sys.stdout.flush()
    sys.stderr.flush()
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
    sys.argv = list(order["argv"])


def main() -> None:
    path = sys.argv[1]
    prepare(sys.argv[2] if len(sys.argv) > 2 else "")
    if not gpu_untouched():
        sys.exit(4)
    become(wait(path))
    # Looked up only now: the console script of vLLM does the same, and its own checks see the final command line.
    importlib.import_module("vllm.entrypoints.cli.main").main()


if __name__ == "__main__":
    main()
