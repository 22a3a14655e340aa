"""The settings of share groups: a group's own, or what the broker says for all of them.

They are asked for with every fetch and acknowledgement, so what was read for a group is kept until the broker's
configuration or the group's has changed.

Owner: the SharePartitionManager, on the broker's loop.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from ottla.config.broker import BrokerConfig
from ottla.config.definitions import GROUP_KEYS
from ottla.config.types import parse_value
from ottla.metadata.image import ClusterImage, ResourceType
from ottla.share.state import Limits

LATEST: Final = "latest"
EARLIEST: Final = "earliest"
_BY_DURATION: Final = "by_duration:"
MAX_REMEMBERED: Final = 10_000

_DURATION = re.compile(
    r"P(?:(?P<days>[-+]?\d+)D)?"
    r"(?:T(?:(?P<hours>[-+]?\d+)H)?(?:(?P<minutes>[-+]?\d+)M)?(?:(?P<seconds>[-+]?\d+(?:[.,]\d+)?)S)?)?",
    re.IGNORECASE,
)
_UNIT_MS = {"days": 86_400_000, "hours": 3_600_000, "minutes": 60_000, "seconds": 1000}


class ShareSettings(NamedTuple):
    """The settings of one share group: Kafka's GroupConfig."""

    limits: Limits
    read_committed: bool = False
    # Where a partition starts that the group has never read: EARLIEST, LATEST, or so many milliseconds ago.
    offset_reset: str | int = LATEST


class ShareGroupConfigProvider:
    """The settings of every share group, by its id."""

    def __init__(self, config: Callable[[], BrokerConfig], image: Callable[[], ClusterImage]) -> None:
        self._config = config
        self._image = image
        self._read: dict[str, tuple[BrokerConfig, Mapping[str, str], ShareSettings]] = {}

    def __call__(self, group_id: str) -> ShareSettings:
        config, own = self._config(), self._image().config(ResourceType.GROUP, group_id)
        known = self._read.get(group_id)
        if known is not None and known[0] is config and known[1] is own:
            return known[2]
        if len(self._read) >= MAX_REMEMBERED:
            self._read.clear()
        settings = _parse(config, own)
        self._read[group_id] = (config, own, settings)
        return settings

    @property
    def max_sessions(self) -> int:
        return int(self._config()["group.share.max.share.sessions"])

    @property
    def max_fetch_bytes(self) -> int:
        return int(self._config()["fetch.max.bytes"])


def _parse(config: BrokerConfig, own: Mapping[str, str]) -> ShareSettings:
    def setting(name: str) -> Any:
        return parse_value(GROUP_KEYS[name], own[name]) if name in own else GROUP_KEYS[name].default

    def bounded(name: str, of_broker: str, least: str, most: str) -> int:
        """A group's own value holds within the broker's bounds, which may have changed since it was set."""
        if name not in own:
            return int(config[of_broker])
        return int(min(max(setting(name), config[least]), config[most]))

    return ShareSettings(
        Limits(
            max_in_flight=bounded(
                "share.partition.max.record.locks",
                "group.share.partition.max.record.locks",
                "group.share.min.partition.max.record.locks",
                "group.share.max.partition.max.record.locks",
            ),
            max_delivery_count=bounded(
                "share.delivery.count.limit",
                "group.share.delivery.count.limit",
                "group.share.min.delivery.count.limit",
                "group.share.max.delivery.count.limit",
            ),
            lock_duration_ms=bounded(
                "share.record.lock.duration.ms",
                "group.share.record.lock.duration.ms",
                "group.share.min.record.lock.duration.ms",
                "group.share.max.record.lock.duration.ms",
            ),
            renew_enabled=setting("share.renew.acknowledge.enable"),
        ),
        setting("share.isolation.level") == "read_committed",
        _offset_reset(setting("share.auto.offset.reset")),
    )


def _offset_reset(text: str) -> str | int:
    return duration_ms(text.removeprefix(_BY_DURATION)) if text.startswith(_BY_DURATION) else text


def duration_ms(text: str) -> int:
    """Milliseconds of an ISO 8601 duration of days and less, as the configuration's check lets it through."""
    found = _DURATION.fullmatch(text)
    assert found is not None, f"{text} passed the configuration's check"
    parts = {unit: value for unit, value in found.groupdict().items() if value is not None}
    return int(sum(float(value.replace(",", ".")) * _UNIT_MS[unit] for unit, value in parts.items()))
