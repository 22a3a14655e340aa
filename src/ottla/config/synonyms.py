"""Keys that say the same thing in other units or for one listener (KIP-226). Pure."""

from __future__ import annotations

from ottla.config.settings import LISTENER_PREFIX, MECHANISM_KEYS

_ROLL = ("log.roll.ms", "log.roll.hours")
_JITTER = ("log.roll.jitter.ms", "log.roll.jitter.hours")
_RETENTION = ("log.retention.ms", "log.retention.minutes", "log.retention.hours")
# Only one way: the scheduler's interval is the default of the flush interval, not another name of it.
_FLUSH = ("log.flush.interval.ms", "log.flush.scheduler.interval.ms")

_SYNONYMS = {
    **dict.fromkeys(_ROLL, _ROLL),
    **dict.fromkeys(_JITTER, _JITTER),
    **dict.fromkeys(_RETENTION, _RETENTION),
    "log.flush.interval.ms": _FLUSH,
}


def synonyms_of(name: str, *, listener_too: bool = True) -> tuple[str, ...]:
    """All names of a broker's key in order of precedence, itself among them."""
    known = _SYNONYMS.get(name)
    if known is not None:
        return known
    if listener_too and name.startswith(LISTENER_PREFIX):
        base = name[len(LISTENER_PREFIX) :].partition(".")[2]
        if base:
            return (name, next((end for end in MECHANISM_KEYS if base.endswith(end)), base))
    return (name,)
