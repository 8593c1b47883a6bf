"""An interpreter that has imported vLLM and waits for its command line. Runs in vLLM's environment, not in ours.

    python autotune_standby.py SOCKET [MODEL]

It imports what `vllm serve` will need, touches no GPU, and listens on the Unix socket. One connection brings one JSON
line ``{"argv": [...], "env": {...}, "cwd": "...", "log": "...", "key": "..."}``; the answer is ``ready``; then this
process is `vllm serve`. It ends by itself when it must not be used. With MODEL vLLM looks at the model's architecture
beforehand, in a process of its own that may use the GPU, and keeps what it finds in its cache.
"""

import contextlib
import gc
import importlib
import json
import os
import pathlib
import socket
import sys

MODULES = (
    "vllm.entrypoints.cli.main",
    "vllm.entrypoints.cli.benchmark.main",
    "vllm.entrypoints.cli.openai",
    "vllm.entrypoints.cli.run_batch",
    "vllm.entrypoints.cli.serve",
    "vllm.entrypoints.openai.api_server",
    "vllm.engine.arg_utils",
    "vllm.v1.engine.async_llm",
    "vllm.v1.engine.core",
    "vllm.v1.engine.core_client",
    "transformers",
)
"""What `vllm serve` imports itself before it starts its engine process, and nothing that looks at a GPU.

Names of several versions; one that this vLLM does not have is passed over.
"""


def prepare() -> None:
    """Import everything; a module that is missing costs nothing but time later."""
    # The other way to ask whether there is a GPU opens the driver, and a forked child could then not use it.
    os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"
    gc.disable()  # millions of objects come, and all stay
    for name in MODULES:
        with contextlib.suppress(Exception):
            importlib.import_module(name)
    gc.enable()
    gc.freeze()  # vLLM collects several times while it starts; what was imported need not be looked at each time


def inspect(model: str) -> None:
    """Let vLLM fill its cache of what an architecture can do; what does not work here is done by the start itself."""
    with contextlib.suppress(Exception):
        folder = pathlib.Path(model)
        if not folder.is_dir():
            cached = importlib.import_module("huggingface_hub").try_to_load_from_cache(model, "config.json")
            folder = pathlib.Path(cached).parent
        registry = importlib.import_module("vllm.model_executor.models.registry").ModelRegistry
        for name in json.loads((folder / "config.json").read_text())["architectures"]:
            registry.models[name].inspect_model_cls()


def can_be_forked() -> bool:
    """Whether a forked child could use the GPU: asked of a child, because only there torch says so."""
    torch = importlib.import_module("torch")
    if torch.cuda.is_initialized():
        return False
    child = os.fork()
    if child == 0:
        os._exit(1 if torch.cuda._is_in_bad_fork() else 0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


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
    if order["key"]:
        hide(order["key"])


def hide(key: str) -> None:
    """Let this process alone know the key: no child inherits it, and vLLM's caches do not depend on it."""
    server = os.getpid()
    known = getattr(importlib.import_module("vllm.envs"), "environment_variables", {})
    if "VLLM_API_KEY" in known:
        known["VLLM_API_KEY"] = lambda: key if os.getpid() == server else None
    else:
        os.environ["VLLM_API_KEY"] = key


def main() -> None:
    path, *model = sys.argv[1:]
    prepare()
    if model:
        inspect(model[0])
    if not can_be_forked():
        sys.exit(4)
    become(wait(path))
    # Looked up only now: the console script of vLLM does the same, and its own checks see the final command line.
    importlib.import_module("vllm.entrypoints.cli.main").main()


if __name__ == "__main__":
    main()
