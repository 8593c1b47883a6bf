"""Markdown, JSON, tables, pictures, and how files are written."""

from __future__ import annotations

import fcntl
import importlib.util
import json
import os
import re
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from autotune.cli.report import report
from autotune.errors import EnvironmentFault, SpecError
from autotune.report.formats import FORMATS, write_report
from autotune.report.markdown import markdown, plain
from autotune.report.values import ReportContent
from autotune.study import Study
from autotune.testing.history import HOSTILE, SECRET


@pytest.mark.parametrize("form", ["html", "md", "json", "csv"])
def test_every_text_format_is_written_without_secrets(content: ReportContent, tmp_path: Path, form: str) -> None:
    out = tmp_path / "new" / f"report.{form}"
    write_report(content, form, out)
    text = out.read_text()
    assert len(text) > 5000 and SECRET not in text
    assert [file.name for file in out.parent.iterdir()] == [out.name], "no half-written file is left"


def test_markdown_tables_hold_hostile_text_as_text(content: ReportContent) -> None:
    text = markdown(content)
    assert "<script" not in text and "<img" not in text
    for table in re.findall(r"(?:^\|.*\|$\n?)+", text, re.M):
        widths = {len(re.findall(r"(?<!\\)\|", row)) for row in table.strip().splitlines()}
        assert len(widths) == 1, "every row has the cells of its head"
    assert plain("a|b\n`c`") == "a\\|b \\`c\\`"


def test_json_is_strict_and_complete(content: ReportContent, tmp_path: Path) -> None:
    write_report(content, "json", tmp_path / "r.json")

    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is no JSON")

    body = json.loads((tmp_path / "r.json").read_text(), parse_constant=refuse)
    assert len(body["trials"]) == len(content.trials)
    first = body["trials"][0]
    assert first["levels"][-1]["figures"]["ttft_p95_ms"].keys() == {"value", "low", "high", "n"}
    assert first["args"]["max_num_seqs"] == "128"


def test_csv_is_a_row_a_trial_and_runs_no_formula(content: ReportContent, tmp_path: Path) -> None:
    evil = replace(content.trials[1], reason="=cmd()")
    write_report(replace(content, trials=(content.trials[0], evil, *content.trials[2:])), "csv", tmp_path / "r.csv")
    frame = pd.read_csv(tmp_path / "r.csv")
    assert list(frame["trial"]) == [trial.number for trial in content.trials]
    assert frame.loc[1, "reason"] == "'=cmd()"
    assert frame.loc[0, "ttft_p95_ms@last"] == pytest.approx(content.trials[0].objectives[1].value)
    assert {"c=16.output_throughput", "c=128.engine.kv_usage_max", "arg.max_num_seqs", "stage.start"} <= set(frame)
    assert frame["reason"].dropna().str.contains("onerror").any() and HOSTILE.split()[0] in str(
        frame["reason"].tolist()
    )


@pytest.mark.skipif(importlib.util.find_spec("pyarrow") is not None, reason="pyarrow is installed")
def test_parquet_without_pyarrow_says_what_to_do(content: ReportContent, tmp_path: Path) -> None:
    with pytest.raises(EnvironmentFault, match=r"needs pyarrow[\s\S]*--format csv"):
        write_report(content, "parquet", tmp_path / "r.parquet")
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(importlib.util.find_spec("pyarrow") is None, reason="pyarrow is not installed")
def test_parquet_reads_back(content: ReportContent, tmp_path: Path) -> None:
    write_report(content, "parquet", tmp_path / "r.parquet")
    assert len(pd.read_parquet(tmp_path / "r.parquet")) == len(content.trials)


@pytest.mark.skipif(importlib.util.find_spec("kaleido") is not None, reason="kaleido is installed")
def test_a_picture_without_a_browser_says_what_to_do(
    content: ReportContent, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(EnvironmentFault, match=r"needs a browser[\s\S]*--format html"):
        write_report(content, "png", tmp_path / "r.png")


def test_an_existing_report_survives_a_failed_one(content: ReportContent, tmp_path: Path) -> None:
    out = tmp_path / "report.html"
    out.write_text("the old one")

    def fails(_: ReportContent, part: Path) -> None:
        part.write_text("half")
        raise OSError(28, "No space left on device")

    FORMATS["fails"] = fails
    try:
        with pytest.raises(EnvironmentFault, match="No space left"):
            write_report(content, "fails", out)
    finally:
        del FORMATS["fails"]
    assert out.read_text() == "the old one" and len(list(tmp_path.iterdir())) == 1


def test_a_device_or_a_pipe_is_written_to_and_stays_one(content: ReportContent, tmp_path: Path) -> None:
    """Run by root, a report to /dev/null put a file in its place."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    end = os.open(pipe, os.O_RDWR | os.O_NONBLOCK)  # also a reader, so that opening it for writing does not wait
    fcntl.fcntl(end, fcntl.F_SETPIPE_SZ, 1 << 20)
    try:
        write_report(content, "json", pipe)
        assert os.read(end, 1) == b"{"
    finally:
        os.close(end)
    assert pipe.is_fifo() and [file.name for file in tmp_path.iterdir()] == ["pipe"]


def test_a_file_where_a_folder_should_be_is_told(content: ReportContent, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(EnvironmentFault, match="choose another --out"):
        write_report(content, "md", tmp_path / "file" / "report.md")


def test_the_command_writes_beside_the_study_and_says_where(study: Study, capsys: pytest.CaptureFixture[str]) -> None:
    report(study.path)
    out = study.folder / "report.html"
    assert out.is_file()
    said = capsys.readouterr().out
    assert str(out) in said and "configurations of example/made-up-8b" in said


def test_an_unknown_format_names_the_legal_ones(study: Study) -> None:
    with pytest.raises(SpecError, match="legal: html, md, json, csv, parquet, png"):
        report(study.path, form="pdf")
