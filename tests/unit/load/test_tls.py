"""Load and control requests over TLS on loopback, with a certificate that nobody has signed but itself."""

from __future__ import annotations

import asyncio
import shutil
import ssl
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from typer import Typer
from typer.testing import CliRunner

from autotune.cli import bench as command
from autotune.errors import EnvironmentFault, SpecError
from autotune.load.bench import BenchPlan, bench, first_model
from autotune.load.measure import measure
from autotune.load.report import Target
from autotune.spec.study import LoadSpec, WarmupSpec, WindowSpec

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the certificate")

LOAD = LoadSpec(
    input_tokens=16, output_tokens=6, levels=[4], warmup=WarmupSpec(requests=4), window=WindowSpec(requests=40)
)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory) -> tuple[Path, ssl.SSLContext]:
    """A self-signed certificate for 127.0.0.1, and what a server needs to show it."""
    folder = tmp_path_factory.mktemp("tls")
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2",
         "-subj", "/CN=mock", "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", "key.pem", "-out", "cert.pem"],
        cwd=folder, check=True, capture_output=True,
    )  # fmt: skip
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(folder / "cert.pem", folder / "key.pem")
    return folder / "cert.pem", context


@pytest.mark.parametrize("trust", ["ca", "insecure"])
async def test_a_load_over_tls(start_server, client, certificate, tmp_path, trust):
    file, context = certificate
    server = await start_server(tls=context, ttft=0.03)
    trusted = {"ca_file": str(file)} if trust == "ca" else {"insecure": True}
    target = replace(server.target, **trusted)
    report = await measure(target, LOAD, trial_seed=1, folder=tmp_path, client=client)
    (level,) = report.levels
    assert level.invalid == ()
    assert level.requests >= 40
    assert level.errors == 0
    ttft = level.estimate("ttft_p50_ms")
    assert ttft is not None
    assert 30 <= ttft.value < 60


async def test_the_whole_bench_over_tls_uses_metrics_and_models(start_server, certificate, tmp_path):
    file, context = certificate
    server = await start_server(tls=context)
    target = replace(server.target, ca_file=str(file))
    assert await first_model(target) == "mock"
    plan = BenchPlan(LOAD, (), None, False, 1, None, tmp_path)
    for _ in range(3):  # so short a window is spoilt by a host that is busy for a moment, and says so
        report = await bench(target, plan)
        if not report.levels[0].invalid:
            break
    assert report.levels[0].invalid == ()
    assert dict(report.levels[0].engine)["generation_tokens"] > 0


async def test_a_certificate_that_is_not_trusted_is_named_with_what_to_do(start_server, client, certificate, tmp_path):
    _, context = certificate
    server = await start_server(tls=context)
    with pytest.raises(EnvironmentFault, match="certificate is not accepted: self-signed certificate") as caught:
        await first_model(server.target)
    assert "--ca FILE" in str(caught.value)
    # The load's own connections say the same.
    with pytest.raises(Exception, match="certificate is not accepted: self-signed certificate"):
        await measure(server.target, LOAD, trial_seed=1, folder=tmp_path, client=client)


async def test_https_to_a_server_without_tls():
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(EnvironmentFault, match="does not speak TLS"):
            await first_model(Target(f"https://127.0.0.1:{port}", ""))


@pytest.mark.parametrize(
    ("name", "content", "message"), [("none.pem", None, "is no file"), ("bad.pem", "x", "holds no certificate")]
)
async def test_a_bad_authority_file(start_server, client, certificate, tmp_path, name, content, message):
    server = await start_server(tls=certificate[1])
    file = tmp_path / name
    if content is not None:
        file.write_text(content)
    with pytest.raises(SpecError, match=message):
        await measure(replace(server.target, ca_file=str(file)), LOAD, trial_seed=1, folder=tmp_path, client=client)


async def test_the_command_line_has_the_options(start_server, certificate):
    file, context = certificate
    server = await start_server(tls=context)
    url = server.target.url
    options = ["--levels", "2", "--duration", "1s", "--input-tokens", "16", "--output-tokens", "4"]
    app = Typer()
    app.command()(command.bench)
    run = CliRunner().invoke
    refused = await asyncio.to_thread(run, app, [url, *options])
    assert isinstance(refused.exception, EnvironmentFault), refused.output
    trusted = await asyncio.to_thread(run, app, [url, *options, "--ca", str(file), "--json"])
    assert trusted.exit_code == 0, trusted.output
    plain = await asyncio.to_thread(run, app, ["http://127.0.0.1:1", "--insecure"])
    assert isinstance(plain.exception, SpecError)
