"""A study on the real vLLM whose space is full of traps: every configuration accounted for, nothing left.

`tests/data/hostile/hostile.yaml` has the traps: refused by the preflight, refused by vLLM alone, more KV cache than
memory, a start that never ends, a hang under load.
"""

from __future__ import annotations

import re
from pathlib import Path

import psutil
import pytest

from autotune.engine.cpu_setup import CpuEngine
from autotune.engine.listeners import listening_inodes
from autotune.engine.supervisor import shm_names, shm_of
from autotune.host.processes import own_pids
from autotune.outcome import Broken, Infeasible, Measured, TrialRecord
from autotune.search.account import ACCOUNT, SpaceAccount
from autotune.study import open_study
from tests.desk import Desk

pytestmark = [pytest.mark.real_engine, pytest.mark.long]

HOSTILE = Path(__file__).parents[1] / "data" / "hostile"
KV = 268_435_456
ENDS: dict[str, tuple[type[Infeasible | Broken], str, str]] = {
    "speculative_config.method": (Infeasible, "config_validation", "SpeculativeConfig"),
    "kv_cache_memory_bytes": (Infeasible, "kv_cache_too_small", "Available memory"),
    "tool_parser_plugin": (Broken, "stall", "stood still in the stage inspect"),
    "logits_processors": (Broken, "stall", "no token for"),
}
"""By the setting that is the trap: what the trial ends with, its class, words of its reason."""


def trap(record: TrialRecord) -> str:
    """Which trap a configuration has, empty for none."""
    asked = dict(record.config.args)
    found = [name for name in ("speculative_config.method", "tool_parser_plugin", "logits_processors") if name in asked]
    found += ["kv_cache_memory_bytes"] if asked["kv_cache_memory_bytes"] != KV else []
    return " ".join(found)


def unused_shm() -> set[str]:
    names = shm_names()
    return names - shm_of(list(own_pids()), names)


def test_every_configuration_is_accounted_for_and_nothing_is_left(cpu_vllm: CpuEngine, desk: Desk) -> None:
    too_much = psutil.virtual_memory().total - (64 << 20)  # the preflight refuses what is more than there is at all
    text = (HOSTILE / "hostile.yaml").read_text().replace("FOLDER", str(HOSTILE)).replace("TOO_MUCH", str(too_much))
    desk.write(text, "hostile.yaml")
    desk.variables["TORCHINDUCTOR_CACHE_DIR"] = str(desk.folder / "kernels")  # a cache of torch's, made to stay
    shared = unused_shm()

    done = desk.run("run", "hostile.yaml", "--plain", timeout=840)

    assert done.returncode == 0, done.stdout + done.stderr
    desk.wait_until_nothing_is_left()
    assert unused_shm() - shared == set()
    said = [log.read_text() for log in desk.folder.rglob("engine.log")]
    ports = {int(port) for text in said for port in re.findall(r"'port': (\d+)", text)}
    assert ports and not any(listening_inodes(port) for port in ports)

    records = desk.result("hostile.yaml").records
    ended = {name: [one.outcome for one in records if trap(one) == name] for name in {trap(one) for one in records}}
    assert set(ended) == {"", *ENDS}, ended
    for name, (kind, cause, words) in ENDS.items():
        # One start is enough to learn from; what hangs is tried once more.
        assert [type(outcome) for outcome in ended[name]] == [kind] * (1 if kind is Infeasible else 2), ended
        for outcome in ended[name]:
            assert not isinstance(outcome, Measured) and outcome.cause == cause and words in outcome.reason, outcome
    assert all(isinstance(outcome, Measured) for outcome in ended[""]), ended
    origins = [one.proposal.origin for one in records if trap(one) == ""]
    assert origins == ["baseline", "sentinel"], "two hang in a row, and the baseline tells that the machine is well"

    store = open_study(desk.folder / "hostile.yaml").existing_store()
    account = SpaceAccount.from_json(store.get(*ACCOUNT) or "")
    store.close()
    assert (account.looked_at, account.untried, account.sampled) == (32, 0, False), account
    assert (account.measured, account.infeasible, account.broken) == (1, 2, 2)
    assert account.causes == (("refused_attention_backend_invalid", 4), ("known_to_fail", 1)), account
    assert account.ruled_out == 22
    shown = desk.run("show", "hostile.yaml").stdout
    assert account.sentence in " ".join(shown.split()) and "attention_backend_invalid" in shown
    listed = desk.run("show", "hostile.yaml", "--refused").stdout
    assert listed.count("attention_backend_invalid") == 4 and listed.count("known_to_fail") == 1
