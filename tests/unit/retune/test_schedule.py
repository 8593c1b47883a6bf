"""When passes start, around both changes of the clock too."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

from autotune.errors import SpecError
from autotune.retune.schedule import Cron, Schedule, Windows
from autotune.spec.retune import MaintenanceSpec, RetuneSpec

BERLIN = ZoneInfo("Europe/Berlin")


def at(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def fires(expression: str, begin: str, count: int, zone: str = "Europe/Berlin") -> list[str]:
    cron, moment, found = Cron(expression, zone), at(begin), []
    for _ in range(count):
        moment = cron.after(moment)
        found.append(f"{moment.astimezone(ZoneInfo(zone)):%a %d %H:%M %z}")
    return found


def test_sunday_is_zero_and_seven_as_in_cron() -> None:
    for expression in ("0 3 * * 0", "0 3 * * 7", "0 3 * * sun"):
        assert fires(expression, "2026-06-01", 2, "UTC") == ["Sun 07 03:00 +0000", "Sun 14 03:00 +0000"]
    assert fires("0 3 * * 5-7", "2026-06-01", 3, "UTC") == [
        "Fri 05 03:00 +0000", "Sat 06 03:00 +0000", "Sun 07 03:00 +0000",
    ]  # fmt: skip


def test_day_and_weekday_mean_either_as_in_cron() -> None:
    assert fires("0 3 10 * 1", "2026-06-02", 3, "UTC") == [
        "Mon 08 03:00 +0000", "Wed 10 03:00 +0000", "Mon 15 03:00 +0000",
    ]  # fmt: skip


def test_a_time_that_spring_skips_fires_once_an_hour_later() -> None:
    assert fires("30 2 * * *", "2026-03-27T12:00", 4) == [
        "Sat 28 02:30 +0100", "Sun 29 03:30 +0200", "Mon 30 02:30 +0200", "Tue 31 02:30 +0200",
    ]  # fmt: skip


def test_a_time_that_autumn_repeats_fires_once() -> None:
    assert fires("30 2 * * *", "2026-10-24T12:00", 3) == [
        "Sun 25 02:30 +0200", "Mon 26 02:30 +0100", "Tue 27 02:30 +0100",
    ]  # fmt: skip


def test_an_hourly_job_runs_through_both_changes_by_real_time() -> None:
    for begin in ("2026-03-28T20:30", "2026-10-24T20:30"):
        cron, moment = Cron("0 * * * *", "Europe/Berlin"), at(begin)
        for _ in range(8):
            later = cron.after(moment)
            assert later - moment <= timedelta(hours=1)
            moment = later


@pytest.mark.parametrize("expression", ["61 3 * * 0", "0 3 * * 9", "a b c d e"])
def test_nonsense_is_refused_with_the_form_that_is_legal(expression: str) -> None:
    with pytest.raises(SpecError, match="no cron expression") as error:
        Cron(expression, "UTC")
    assert "five fields" in (error.value.hint or "")


def test_a_day_that_never_comes_is_refused() -> None:
    with pytest.raises(SpecError, match="never comes"):
        Cron("0 3 30 2 *", "UTC").after(at("2026-01-01"))


def nights(opens: str, closes: str) -> Windows:
    return Windows((MaintenanceSpec(opens=opens, closes=closes),), BERLIN)


def test_a_window_over_midnight_holds_both_sides() -> None:
    windows = nights("22:00", "06:00")
    for moment in ("2026-06-10T21:00", "2026-06-11T03:59"):
        opening = windows.opening(at(moment))
        assert (opening.begins, opening.ends) == (at("2026-06-10T20:00"), at("2026-06-11T04:00"))
    assert windows.opening(at("2026-06-11T04:00")).begins == at("2026-06-11T20:00")


@pytest.mark.parametrize(
    ("moment", "hours"), [("2026-03-28T23:00", 7), ("2026-10-24T23:00", 9), ("2026-06-10T23:00", 8)]
)
def test_a_window_over_a_change_of_the_clock_keeps_its_local_ends(moment: str, hours: int) -> None:
    opening = nights("22:00", "06:00").opening(at(moment))
    assert opening.ends is not None
    assert opening.ends - opening.begins == timedelta(hours=hours)
    assert f"{opening.ends.astimezone(BERLIN):%H:%M}" == "06:00"


def test_a_window_in_an_hour_that_does_not_exist_is_left_out_and_the_next_one_taken() -> None:
    opening = nights("02:00", "03:00").opening(at("2026-03-28T22:00"))
    assert opening.begins == at("2026-03-30T00:00")


def test_windows_that_touch_are_one() -> None:
    spec = (MaintenanceSpec(opens="22:00", closes="00:00"), MaintenanceSpec(opens="00:00", closes="05:00"))
    opening = Windows(spec, ZoneInfo("UTC")).opening(at("2026-06-10T23:00"))
    assert (opening.begins, opening.ends) == (at("2026-06-10T22:00"), at("2026-06-11T05:00"))


def schedule(**keys: object) -> Schedule:
    return Schedule.of(RetuneSpec.model_validate({"cron": "0 3 * * *", **keys}), "study@host")


def test_missed_runs_are_caught_up_once() -> None:
    start = schedule().next_start(at("2026-06-01T03:00"), at("2026-06-05T12:00"))
    assert (start.fire, start.at, start.missed) == (at("2026-06-05T03:00"), at("2026-06-05T12:00"), 4)
    assert "catching up 4 missed runs in one" in start.sentence
    later = schedule().next_start(start.fire, at("2026-06-05T14:00"))
    assert (later.fire, later.missed) == (at("2026-06-06T03:00"), 0)


def test_a_caught_up_run_still_waits_for_its_window() -> None:
    windows = [{"opens": "02:00", "closes": "06:00"}]
    start = schedule(windows=windows).next_start(at("2026-06-01T03:00"), at("2026-06-03T12:00"))
    assert (start.fire, start.at, start.missed) == (at("2026-06-04T03:00"), at("2026-06-04T03:00"), 2)
    assert "catching up 2 missed runs in one" in start.sentence  # the run that this window has anyway
    weekly = schedule(cron="0 3 * * 0", windows=windows).next_start(at("2026-06-01T03:00"), at("2026-06-09T12:00"))
    assert (weekly.fire, weekly.at) == (at("2026-06-07T03:00"), at("2026-06-10T02:00"))
    assert "when the maintenance window is open" in weekly.sentence


@pytest.mark.parametrize(("cron", "opens"), [("0 3 * * *", "02:30"), ("0 1 * * *", "03:00"), ("30 3 * * *", "03:20")])
def test_jitter_never_leads_out_of_a_window(cron: str, opens: str) -> None:
    """Half of what is left of it stays; hosts whose time lies before the window do not all start when it opens."""
    spec = RetuneSpec.model_validate(
        {"cron": cron, "jitter": 7200, "windows": [{"opens": opens, "closes": "04:00"}]}
    )  # fmt: skip
    now, starts = at("2026-06-01T00:00"), set()
    for number in range(20):
        start = Schedule.of(spec, f"study@host{number}").next_start(now, now)
        assert max(start.fire, at(f"2026-06-01T{opens}")) <= start.at <= at("2026-06-01T03:45")
        starts.add(start.at)
    assert len(starts) == 20


def test_hosts_that_come_back_together_do_not_start_together() -> None:
    spec = RetuneSpec(cron="0 3 * * *", jitter=3600)
    plans = [Schedule.of(spec, f"study@host{number}") for number in range(20)]
    starts = {plan.next_start(at("2026-06-01T03:00"), at("2026-06-05T12:00")).at for plan in plans}
    assert len(starts) == 20 and all(at("2026-06-05T12:00") <= start < at("2026-06-05T13:00") for start in starts)


def test_a_window_that_opens_in_a_skipped_hour_opens_when_the_clock_jumps() -> None:
    opening = nights("02:30", "03:30").opening(at("2026-03-28T22:00"))
    assert (opening.begins, opening.ends) == (at("2026-03-29T01:00"), at("2026-03-29T01:30"))


def test_jitter_is_the_same_every_time_and_differs_between_hosts() -> None:
    spec = RetuneSpec(cron="0 3 * * *", jitter=3600)
    delays = {Schedule.of(spec, f"study@host{number}").jitter_s for number in range(20)}
    assert len(delays) == 20 and all(0 <= delay < 3600 for delay in delays)
    assert Schedule.of(spec, "study@host3").jitter_s == Schedule.of(spec, "study@host3").jitter_s


@pytest.mark.parametrize("zone", ["Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "UTC"])
def test_a_year_has_a_run_every_day_whatever_the_clock_does(zone: str) -> None:
    plan = schedule(cron="30 2 * * *", timezone=zone)
    now, days = at("2026-01-01T12:00"), set()
    for _ in range(365):
        start = plan.next_start(now, now)
        days.add(f"{start.at.astimezone(ZoneInfo(zone)):%Y-%m-%d}")
        now = start.fire
    assert len(days) == 365
