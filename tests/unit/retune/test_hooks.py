"""Commands and signed webhooks."""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
from aiohttp import web

from autotune.errors import SpecError
from autotune.retune.hooks import HookEvent, StudyHooks, signature
from autotune.spec.load import load_study
from autotune.spec.retune import HooksSpec

EVENT = HookEvent("study", "promote", 3, 2, "/srv/deploy/current", "x1.2", (("tok/s", 1.2, 1.1, 1.3),))
Seen = list[tuple[dict[str, str], bytes]]
Serve = Callable[[int], Awaitable[tuple[str, Seen]]]


@pytest.fixture
async def serve() -> AsyncIterator[Serve]:
    runners = []

    async def start(status: int) -> tuple[str, Seen]:
        seen: Seen = []

        async def answer(request: web.Request) -> web.Response:
            seen.append((dict(request.headers), await request.read()))
            return web.Response(status=status, headers={"Location": "/elsewhere"})

        application = web.Application()
        application.router.add_post("/hook", answer)
        runner = web.AppRunner(application)
        await runner.setup()
        runners.append(runner)
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        return f"http://127.0.0.1:{runner.addresses[0][1]}/hook?token=hidden", seen

    yield start
    for runner in runners:
        await runner.cleanup()


def hooks(folder: Path, spec: dict[str, object], **environ: str) -> StudyHooks:
    return StudyHooks(HooksSpec.model_validate(spec), folder / "hooks", folder, environ)


async def test_a_webhook_is_signed_over_time_and_body(tmp_path: Path, serve: Serve) -> None:
    url, seen = await serve(204)
    made = hooks(tmp_path, {"before": [{"url": url}]}, AUTOTUNE_WEBHOOK_SECRET="s3cret")
    assert await made.run("before", EVENT, 1000.0) is None
    headers, body = seen[0]
    wanted = hmac.new(b"s3cret", b"1000." + body, hashlib.sha256).hexdigest()
    assert headers["X-Autotune-Signature"] == f"sha256={wanted}" == signature("s3cret", 1000.0, body.decode())
    told = json.loads(body)
    assert (told["event"], told["version"], told["gains"]) == ("before_promote", 3, [["tok/s", 1.2, 1.1, 1.3]])


@pytest.mark.parametrize(("status", "word"), [(500, "HTTP 500"), (302, "HTTP 302")])
async def test_an_answer_that_is_no_success_fails_and_hides_the_token(
    tmp_path: Path, serve: Serve, status: int, word: str
) -> None:
    url, seen = await serve(status)
    problem = await hooks(tmp_path, {"after": [{"url": url}]}, AUTOTUNE_WEBHOOK_SECRET="x").run("after", EVENT, 1.0)
    assert problem is not None and word in problem and "hooks.after[0]" in problem
    assert "hidden" not in problem and len(seen) == 1


async def test_an_address_that_is_a_secret_comes_from_the_environment(tmp_path: Path, serve: Serve) -> None:
    url, seen = await serve(204)
    spec: dict[str, object] = {"after": [{"url": "${HOOK_URL}"}]}
    assert await hooks(tmp_path, spec, AUTOTUNE_WEBHOOK_SECRET="x", HOOK_URL=url).run("after", EVENT, 1.0) is None
    assert len(seen) == 1
    problem = await hooks(tmp_path, spec, AUTOTUNE_WEBHOOK_SECRET="x").run("after", EVENT, 1.0)
    assert problem is not None and "(${HOOK_URL}) was not called: $HOOK_URL" in problem
    down = hooks(tmp_path, spec, AUTOTUNE_WEBHOOK_SECRET="x", HOOK_URL="http://127.0.0.1:1/t0ken")
    problem = await down.run("after", EVENT, 1.0)
    assert problem is not None and "cannot be reached" in problem and "t0ken" not in problem


async def test_without_its_secret_a_webhook_is_not_called(tmp_path: Path, serve: Serve) -> None:
    url, seen = await serve(204)
    problem = await hooks(tmp_path, {"after": [{"url": url}]}).run("after", EVENT, 1.0)
    assert problem is not None and "$AUTOTUNE_WEBHOOK_SECRET" in problem and seen == []


async def test_a_command_gets_the_event_and_the_first_failure_ends_the_row(tmp_path: Path) -> None:
    row = [
        {"command": ["sh", "-c", 'cp "$AUTOTUNE_EVENT" event.json; echo "$AUTOTUNE_CHANGE $AUTOTUNE_VERSION" > first']},
        {"command": ["sh", "-c", "echo broken; exit 3"]},
        {"command": ["sh", "-c", "touch never"]},
    ]
    problem = await hooks(tmp_path, {"after": row}).run("after", EVENT, 1.0)
    assert problem is not None and "hooks.after[1]" in problem and "code 3" in problem
    assert (tmp_path / "first").read_text() == "promote 3\n" and not (tmp_path / "never").exists()
    assert json.loads((tmp_path / "event.json").read_text())["path"] == "/srv/deploy/current"


async def test_a_command_that_hangs_is_ended(tmp_path: Path) -> None:
    made = hooks(tmp_path, {"before": [{"command": ["sleep", "60"], "timeout": 0.2}]})
    problem = await made.run("before", EVENT, 1.0)
    assert problem is not None and "longer than 0.2 s" in problem


def test_a_dry_run_names_what_would_be_called_without_tokens(tmp_path: Path) -> None:
    made = hooks(tmp_path, {"before": [{"command": ["drain"]}], "after": [{"url": "https://u:p@hook.example/t0ken"}]})
    assert made.plan() == (
        "before the change it would run drain",
        "after the change it would post to https://hook.example",
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("hooks: {after: [{}]}", "a hook is either a command or a url"),
        ("hooks: {after: [{command: []}]}", "is empty"),
        ("timezone: Europe/Atlantis", "is no time zone"),
        ("cron: every sunday", "is no cron expression"),
        ("windows: [{opens: '25:00', closes: '06:00'}]", "is no time of day"),
    ],
)
def test_wrong_settings_are_told_with_their_place(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "study.yaml"
    path.write_text(f"name: x\nmodel: m/m\nretune:\n  {text}\n")
    with pytest.raises(SpecError, match=message) as error:
        load_study(path)
    assert (error.value.line, (error.value.key or "").split(".")[0]) == (4, "retune")
