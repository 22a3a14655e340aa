"""Points in time and durations as a command line gives them. Pure."""

from __future__ import annotations

from ottla.cli.args import UsageError

_UNITS_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def parse_datetime_ms(text: str) -> int:
    """ISO 8601, e.g. 2026-01-31T12:00:00.000; without a zone it is UTC, as kafka-consumer-groups has it."""
    from datetime import UTC, datetime

    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise UsageError(
            f"{text!r} is no time like 2026-01-31T12:00:00.000 or 2026-01-31T12:00:00+01:00"
        ) from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    # Whole milliseconds, without the rounding of a float.
    elapsed = moment - datetime(1970, 1, 1, tzinfo=UTC)
    return (elapsed.days * 86_400 + elapsed.seconds) * 1000 + elapsed.microseconds // 1000


def parse_duration_ms(text: str) -> int:
    """ISO 8601 (PnDTnHnMnS) or short, e.g. 90s, 15m, 2h, 7d."""
    import re

    iso = re.fullmatch(
        r"P(?:(\d+)D)?(?:T(?=\d)(?:(\d+)H)?(?:(\d+)M)?(?:(\d+)(?:\.(\d{1,9}))?S)?)?", text, re.IGNORECASE
    )
    if iso and any(iso.groups()):
        days, hours, minutes, seconds = (int(part or 0) for part in iso.groups()[:4])
        millis = int((iso[5] or "").ljust(3, "0")[:3] or 0)
        return ((days * 24 + hours) * 60 + minutes) * 60_000 + seconds * 1000 + millis
    short = re.fullmatch(r"(\d+)(ms|s|m|h|d)", text)
    if short:
        return int(short[1]) * _UNITS_MS[short[2]]
    raise UsageError(f"{text!r} is no duration like PT1H30M, P2D, 90s, 15m, 2h")


def parse_moment_ms(text: str) -> int:
    """Milliseconds since 1970, a time as above, `now`, or a duration before it (15m and -15m are the same)."""
    import time

    if text.isdecimal():
        return int(text)
    now_ms = time.time_ns() // 1_000_000
    if text == "now":
        return now_ms
    try:
        return max(now_ms - parse_duration_ms(text.removeprefix("-")), 0)
    except UsageError:
        pass  # then it is a time
    try:
        return parse_datetime_ms(text)
    except UsageError:
        raise UsageError(
            f"{text!r} is no time: milliseconds, 2026-01-31T12:00:00 (UTC, or with a zone), "
            "or 15m, 2h, 7d for so long ago"
        ) from None
