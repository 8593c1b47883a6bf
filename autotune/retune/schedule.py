"""When a pass starts: cron with time zones, maintenance windows, jitter, and missed runs caught up once. All pure.

Daylight saving: a time that the spring change skips fires once, an hour later by the clock on the wall; one that the
autumn change repeats fires once. Jobs with `*` in the hour field run through both changes by real time, as with cron.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, time, timedelta
from zoneinfo import ZoneInfo

from apscheduler.triggers.cron import CronTrigger

from autotune.errors import SpecError
from autotune.spec.retune import DAYS, MaintenanceSpec, RetuneSpec

_WEEK = ("sun", "mon", "tue", "wed", "thu", "fri", "sat", "sun")
LOOK_BACK = (timedelta(hours=1), timedelta(days=1), timedelta(days=8), timedelta(days=367))
LATE = timedelta(minutes=5)
"""A start that is later than its time by more than this was missed and is caught up."""
HORIZON_DAYS = 15


class Cron:
    """Five cron fields in a time zone.

    Raises:
        SpecError: the expression is none.
    """

    def __init__(self, expression: str, zone: str) -> None:
        self.zone = ZoneInfo(zone)
        try:
            self._triggers = tuple(CronTrigger(timezone=self.zone, **fields) for fields in _fields(expression))
        except (ValueError, IndexError, TypeError) as error:
            hint = "five fields: minute hour day month weekday, such as '0 3 * * 0' for Sundays at three"
            raise SpecError(f"{expression!r} is no cron expression: {error}", key="retune.cron", hint=hint) from None
        self._every_hour = expression.split()[1].startswith("*")

    def after(self, moment: datetime) -> datetime:
        """The first time after `moment`, in UTC.

        Raises:
            SpecError: it never comes, such as on a 30th of February.
        """
        found = [fire for trigger in self._triggers if (fire := self._next(trigger, moment)) is not None]
        if not found:
            raise SpecError("the cron expression names a time that never comes", key="retune.cron")
        return min(found)

    def _next(self, trigger: CronTrigger, moment: datetime) -> datetime | None:
        """The library looks from a whole local second on; where an hour is repeated it may find a time that is over."""
        search = moment
        while True:
            fire = trigger.get_next_fire_time(None, search + timedelta(seconds=1))
            if fire is None:
                return None
            found: datetime = fire.astimezone(UTC)
            if found > moment and (self._every_hour or fire.fold == 0):
                return found
            search = max(found, search + timedelta(minutes=1))

    def latest(self, after: datetime, now: datetime) -> tuple[datetime, int] | None:
        """The last time in (`after`, `now`], and how many there were since then within the span that was looked at."""
        for span in (*LOOK_BACK, now - after):
            begin = max(after, now - span)
            found, count = None, 0
            while (fire := self.after(found or begin)) <= now:
                found, count = fire, count + 1
            if found is not None:
                if begin > after and count < 2:
                    continue  # look further back, for the number that is reported
                return found, count
        return None


def plain_cron(expression: str) -> str:
    """The expression with weekdays as names: not every cron knows 7, or a range that ends on Sunday."""
    *fields, weekday = expression.lower().split()
    return " ".join([*fields, _weekday(weekday)])


def _fields(expression: str) -> list[dict[str, str]]:
    """Arguments of one trigger, or of two where cron means either of day and weekday."""
    minute, hour, day, month, weekday = expression.lower().split()
    weekday = _weekday(weekday)
    common = {"second": "0", "minute": minute, "hour": hour, "month": month}
    if day.startswith("*") or weekday.startswith("*"):
        return [{**common, "day": day, "day_of_week": weekday}]
    return [{**common, "day": day, "day_of_week": "*"}, {**common, "day": "*", "day_of_week": weekday}]


def _weekday(field: str) -> str:
    """Cron counts from Sunday, the library from Monday: numbers become names, and ranges become lists."""
    parts = []
    for part in field.split(","):
        span, _, step = part.partition("/")
        if span == "*" and not step:
            parts.append("*")
            continue
        low, _, high = span.partition("-") if span != "*" else ("0", "-", "6")
        begin = _day_number(low)
        end = _day_number(high) if high else (6 if step else begin)
        if end < begin:
            end += 7
        parts += [_WEEK[number % 7] for number in range(begin, end + 1, int(step or 1))]
    return ",".join(dict.fromkeys(parts))


def _day_number(text: str) -> int:
    if text in _WEEK:
        return _WEEK.index(text)
    number = int(text)
    if not 0 <= number <= 7:
        raise ValueError(f"{text} is no day of the week")
    return number


@dataclass(frozen=True, slots=True)
class Opening:
    """A stretch of time in which tuning may run; `ends` None: for ever."""

    begins: datetime
    ends: datetime | None


@dataclass(frozen=True)
class Windows:
    """Maintenance windows in a time zone; none at all is always open."""

    windows: tuple[MaintenanceSpec, ...]
    zone: ZoneInfo

    def opening(self, moment: datetime) -> Opening:
        """The opening that holds `moment`, else the next one.

        Raises:
            SpecError: there is none within two weeks.
        """
        if not self.windows:
            return Opening(moment, None)
        day = moment.astimezone(self.zone).date() - timedelta(days=2)
        found = [
            opening
            for number in range(HORIZON_DAYS + 2)
            for window in self.windows
            if DAYS[(day + timedelta(days=number)).weekday()] in window.days
            and (opening := self._on(window, datetime.combine(day + timedelta(days=number), time()))) is not None
            and opening.ends is not None
            and opening.ends > moment
        ]
        if not found:
            raise SpecError("no maintenance window opens within two weeks", key="retune.windows")
        return _joined(sorted(found, key=lambda one: one.begins))

    def _on(self, window: MaintenanceSpec, midnight: datetime) -> Opening | None:
        """The window on one day. Where the clock changes it is never longer than it was meant to be."""
        begins, ends = _clock(window.opens), _clock(window.closes)
        last = midnight + timedelta(days=1) if ends <= begins else midnight
        begin = max(self._moments(datetime.combine(midnight.date(), begins)))
        end = min(self._moments(datetime.combine(last.date(), ends)))
        return Opening(begin, end) if end > begin else None

    def _moments(self, local: datetime) -> tuple[datetime, datetime]:
        """Both readings of a local time that the clock shows twice; for one that it skips, twice when it jumps."""
        first, second = (local.replace(tzinfo=self.zone, fold=fold).astimezone(UTC) for fold in (0, 1))
        if first > second:  # skipped: the reading by the offset before the change lies after it
            first = second = self._jump(second, first)
        return first, second

    def _jump(self, before: datetime, after: datetime) -> datetime:
        """When the clock jumps between two moments, to the second."""
        offset = before.astimezone(self.zone).utcoffset()
        while after - before > timedelta(seconds=1):
            middle = before + (after - before) / 2
            if middle.astimezone(self.zone).utcoffset() == offset:
                before = middle
            else:
                after = middle
        return after.replace(microsecond=0)


def _clock(text: str) -> time:
    hour, _, minute = text.partition(":")
    return time(int(hour), int(minute))


def _joined(openings: Sequence[Opening]) -> Opening:
    """The first opening with everything that follows without a gap."""
    begins, ends = openings[0].begins, openings[0].ends
    for one in openings[1:]:
        if ends is not None and one.ends is not None and one.begins <= ends:
            ends = max(ends, one.ends)
    return Opening(begins, ends)


@dataclass(frozen=True, slots=True)
class Start:
    """When a pass starts.

    Attributes:
        fire: the scheduled time that it is for.
        at: when it starts: after jitter, inside a window.
        missed: scheduled times that passed without a run; they are caught up by this one.
        sentence: why then.
    """

    fire: datetime
    at: datetime
    missed: int
    sentence: str


@dataclass(frozen=True)
class Schedule:
    """Cron, windows and jitter of one study.

    Attributes:
        jitter: the longest delay in seconds.
        share: this study's own part of it, from 0 to 1.
    """

    cron: Cron
    windows: Windows
    jitter: float
    share: float

    @classmethod
    def of(cls, spec: RetuneSpec, identity: str) -> Schedule:
        """The schedule of a study; `identity` (study and host) decides its jitter.

        Raises:
            SpecError: the cron expression is none.
        """
        share = int.from_bytes(hashlib.sha256(identity.encode()).digest()[:4], "big") / 2**32
        cron = Cron(spec.cron, spec.timezone)
        return cls(cron, Windows(tuple(spec.windows), cron.zone), spec.jitter, share)

    @property
    def jitter_s(self) -> float:
        """This study's own delay in seconds."""
        return self.share * self.jitter

    def next_start(self, handled: datetime, now: datetime) -> Start:
        """The next start.

        Args:
            handled: the last scheduled time that had its run, or when the schedule began.
            now: the present.
        """
        missed = self.cron.latest(handled, now)
        fire, count = missed if missed is not None else (self.cron.after(max(handled, now)), 0)
        late = count > 0 and now - fire > LATE + timedelta(seconds=self.jitter_s)
        point = now if late else max(now, fire)
        opening = self.windows.opening(point)
        if opening.begins > point:
            fire, base = self._inside(fire, opening)
        else:
            in_it = opening.ends is None or opening.begins <= fire
            base = fire if in_it and not late else point
        at = max(now, base + self._delay(base, opening))
        return Start(fire, at, count if late else 0, self._sentence(fire, at, opening, count if late else 0))

    def _inside(self, fire: datetime, opening: Opening) -> tuple[datetime, datetime]:
        """The scheduled time and the start where it has to wait for a window; a run that the window has is this one."""
        found = self.cron.after(opening.begins - timedelta(seconds=1))
        has_one = opening.ends is not None and found < opening.ends
        return (found, found) if has_one else (fire, opening.begins)

    def _delay(self, begun: datetime, opening: Opening) -> timedelta:
        """Jitter, so much shorter that half of the window is left: a run is not put off to the next one by it."""
        jitter = timedelta(seconds=self.jitter_s)
        return jitter if opening.ends is None else min(jitter, self.share * (opening.ends - begun) / 2)

    def _sentence(self, fire: datetime, at: datetime, opening: Opening, missed: int) -> str:
        zone = self.cron.zone
        text = f"starts {at.astimezone(zone):%a %Y-%m-%d %H:%M %Z}"
        if missed:
            text += f", catching up {missed} missed run{'s' if missed > 1 else ''} in one"
        elif at - fire >= timedelta(minutes=1) and fire >= opening.begins:
            text += f", {(at - fire).total_seconds() / 60:.0f} min of jitter after {fire.astimezone(zone):%H:%M}"
        waited = opening.ends is not None and opening.begins > fire
        return text + (", when the maintenance window is open" if waited else "")
