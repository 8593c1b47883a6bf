"""Reading study files and overrides."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from autotune.errors import SpecError, SpecErrors
from autotune.spec.document import SIZE_LIMIT
from autotune.spec.load import completed, load_study
from autotune.spec.resolved import resolved_yaml
from autotune.spec.study import StudySpec

HEAD = "name: case\nmodel: Qwen/Qwen3-8B\n"


def write(folder: Path, text: str) -> Path:
    path = folder / "study.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def refused(path: Path | str, *overrides: str) -> SpecError:
    with pytest.raises(SpecError) as caught:
        load_study(path, overrides)
    return caught.value


def test_two_keys_are_enough(tmp_path: Path) -> None:
    study = load_study(write(tmp_path, HEAD))
    assert (study.name, study.model) == ("case", "Qwen/Qwen3-8B")
    assert [item.metric for item in study.objectives] == ["output_throughput", "ttft"]


def test_units_are_read(tmp_path: Path) -> None:
    study = load_study(write(tmp_path, HEAD + "hardware: {gpu_memory: 80GiB}\nload: {request_timeout: 1h30m}\n"))
    assert study.hardware.gpu_memory == 80 * 2**30
    assert study.load.request_timeout == 5400.0


def test_merges_give_precedence_to_own_keys_and_the_first_anchor(tmp_path: Path) -> None:
    text = "engine:\n  args: &a {x: 1, y: 1, z: 1}\nbaseline:\n  args:\n    <<: [{y: 2, z: 2}, *a]\n    z: 3\n"
    assert load_study(write(tmp_path, HEAD + text)).baseline.args == {"x": 1, "y": 2, "z": 3}


def test_variables_stay_unexpanded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "very-secret")
    study = load_study(write(tmp_path, HEAD + "engine: {env: {HF_TOKEN: '${HF_TOKEN}'}}\n"))
    assert study.engine.env == {"HF_TOKEN": "${HF_TOKEN}"}


def test_a_simulated_engine_always_has_a_card(tmp_path: Path) -> None:
    simulate = load_study(write(tmp_path, HEAD + "engine: {kind: simulated}\n")).engine.simulate
    assert simulate is not None
    assert simulate.card == "h100"


def test_all_mistakes_come_at_once_and_in_the_order_of_the_file(tmp_path: Path) -> None:
    error = refused(write(tmp_path, HEAD + "search: {trials: 0}\nlod: {}\nconfirm: {rounds: x}\n"))
    assert isinstance(error, SpecErrors)
    assert [item.key for item in error.errors] == ["search.trials", "lod", "confirm.rounds"]
    assert [item.line for item in error.errors] == [3, 4, 5]
    assert error.exit_code == 2


def test_missing_file_names_a_neighbour(tmp_path: Path) -> None:
    path = write(tmp_path, HEAD)
    error = refused(path.with_name("studi.yaml"))
    assert error.message == "no such file"
    assert str(path) in str(error.hint)


def test_folder_fifo_and_device_are_refused(tmp_path: Path) -> None:
    write(tmp_path, HEAD)
    assert "study.yaml" in str(refused(tmp_path).hint)
    os.mkfifo(tmp_path / "pipe.yaml")
    assert refused(tmp_path / "pipe.yaml").message == "is no regular file"
    assert refused("/dev/null").message == "is no regular file"


def test_names_that_no_file_can_have_are_refused() -> None:
    assert "cannot be read" in refused("a\0b.yaml").message
    assert "cannot be read" in refused("x" * 5000).message


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_unreadable_file_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path, HEAD)
    path.chmod(0)
    assert "Permission denied" in refused(path).message


def test_huge_file_is_refused_unread(tmp_path: Path) -> None:
    path = tmp_path / "huge.yaml"
    with path.open("wb") as stream:
        stream.truncate(10 * 2**30)
    assert f"{SIZE_LIMIT // 1024} KiB" in refused(path).message


def test_overrides_lie_over_the_file(tmp_path: Path) -> None:
    path = write(tmp_path, HEAD + "search: {trials: 3}\nengine: {args: {compilation_config: {mode: 1}}}\n")
    study = load_study(
        path,
        [
            "search.trials=5",
            "load.levels=[8, 16]",
            "load.window.requests=40",
            "objectives[0]={metric: ttft, percentile: 90}",
            "objectives[0].percentile=50",
            "engine.args.compilation_config.mode=3",
            "baseline.args.compilation_config.mode=0",
            "revision=",
            "storage=out",
            "storage=elsewhere",
        ],
    )
    assert study.search.trials == 5
    assert study.load.levels == [8, 16]
    assert (study.load.window.requests, study.load.window.duration) == (40, None)
    assert [(item.metric, item.percentile) for item in study.objectives] == [("ttft", 50)]
    assert study.engine.args == {"compilation_config": {"mode": 3}}
    assert study.baseline.args == {"compilation_config.mode": 0}
    assert study.revision is None
    assert study.storage == "elsewhere"


@pytest.mark.parametrize(
    ("override", "key", "message"),
    [
        ("search.trials", None, "needs a key and a value"),
        ("=5", None, "needs a key and a value"),
        ("load..levels=1", None, "'load..levels' is no key"),
        ("load.levels[x]=1", None, "'load.levels[x]' is no key"),
        ("search.trails=5", "search.trails", "unknown key"),
        ("search.trials=many", "search.trials", "must be a whole number, not 'many'"),
        ("name.first=x", "name", "holds no key 'first'"),
        ("objectives[3].metric=ttft", "objectives", "has no entry 3"),
        ("search.trials=[1", None, "is no YAML: expected ',' or ']', but got '<stream end>'"),
    ],
)
def test_wrong_overrides_name_themselves(tmp_path: Path, override: str, key: str | None, message: str) -> None:
    error = refused(write(tmp_path, HEAD), override)
    assert error.message == message
    assert error.key == key
    assert error.file is not None
    assert error.file.startswith("--set")


@pytest.mark.parametrize(
    "secret",
    [
        "hf_abcdefghijklmnopqrstuvwxyz",
        "sk-proj-abcdefghijklmnopqrstuvwxyz",
        "ghp_abcdefghijklmnopqrstuvwxyz0123456789",
        "AKIAABCDEFGHIJKLMNOP",
        "postgresql://user:hunter2hunter2@db/x",
    ],
)
@pytest.mark.parametrize("place", ["model: {}\nname: case\n", HEAD + "storage: {}\n", HEAD + "engine: {{kind: {}}}\n"])
def test_secrets_are_refused_and_never_repeated(tmp_path: Path, secret: str, place: str) -> None:
    text = str(refused(write(tmp_path, place.format(secret))))
    assert "holds a secret in plain text" in text
    assert secret not in text
    assert "hunter2" not in text


def test_a_secret_in_an_override_is_not_repeated(tmp_path: Path) -> None:
    error = refused(write(tmp_path, HEAD), "engine.env.HF_TOKEN=not-like-a-token")
    assert error.key == "engine.env.HF_TOKEN"
    assert "not-like-a-token" not in str(error)


def test_durations_in_a_mapping_keep_their_units(tmp_path: Path) -> None:
    spec = StudySpec.model_validate({"name": "s", "model": "m", "engine": {"phase_timeouts": {"weights": "30m"}}})
    text = resolved_yaml(spec)
    assert "weights: 30m" in text
    (tmp_path / "again.yaml").write_text(text)
    assert load_study(tmp_path / "again.yaml") == spec


def test_a_study_kept_by_an_older_version_gets_the_defaults_of_new_keys() -> None:
    spec = StudySpec.model_validate({"name": "s", "model": "m", "engine": {"ready_timeout": "5m"}})
    older = json.loads(spec.model_dump_json())
    del older["load"]["images"], older["engine"]["phase_timeouts"], older["topology"]
    assert json.loads(completed(json.dumps(older))) == json.loads(spec.model_dump_json())
    gone = json.dumps({**older, "a_key_that_is_gone": 1})
    assert completed(gone) == gone
