"""How far queries are behind their topics: in records, and in seconds since the first record not yet read.

Asked by the runner beside the queries, never by a query: if the brokers do not answer, there is no figure and
nothing else happens.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING

from ottla.model.ids import TopicPartition

if TYPE_CHECKING:
    from ottla.client.inline import InlineClient

# Timestamps are read for so many of the partitions that are behind: the oldest is among the furthest, mostly.
MAX_TIMESTAMPS = 16
TIMEOUT_MS = 2_000.0
MAX_FETCH_BYTES = 1

Offsets = Mapping[str, Mapping[str, int]]
log = logging.getLogger(__name__)


class Lags:
    """Asks the brokers, on one connection."""

    def __init__(self, bootstrap: str, options: Mapping[str, str]) -> None:
        from ottla.spark.kafka_options import kafka_options

        self._kafka = kafka_options({"kafka.bootstrap.servers": bootstrap, **options})
        self._client: InlineClient | None = None

    def close(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None

    def of(self, offsets: Offsets, now_ms: int) -> tuple[int | None, float | None]:
        """Records and seconds behind."""
        from ottla.model.errors import KafkaError

        places = {
            TopicPartition(topic, int(partition)): at
            for topic, there in offsets.items()
            for partition, at in there.items()
        }
        if not places:
            return None, None
        try:
            return self._ask(places, now_ms)
        except (KafkaError, OSError) as error:
            log.debug("no lag: %s", error)
            self.close()
            return None, None

    def _ask(self, places: Mapping[TopicPartition, int], now_ms: int) -> tuple[int, float]:
        from ottla.client.offsets import LATEST

        client = self._connected()
        found = client.list_offsets(dict.fromkeys(places, LATEST), read_committed=True, timeout_ms=TIMEOUT_MS)
        behind = {tp: found[tp].offset - at for tp, at in places.items() if found[tp].offset > at}
        stamps = [
            stamp
            for tp in sorted(behind, key=lambda tp: -behind[tp])[:MAX_TIMESTAMPS]
            if (stamp := _first_timestamp(client, tp, places[tp], places[tp] + behind[tp])) is not None
        ]
        oldest = min(stamps, default=None)
        return sum(behind.values()), 0.0 if oldest is None else round(max(now_ms - oldest, 0) / 1000, 1)

    def _connected(self) -> InlineClient:
        from ottla.spark.connection import connect

        if self._client is None:
            self._client = connect(self._kafka)
        return self._client


def _first_timestamp(client: InlineClient, tp: TopicPartition, start: int, end: int) -> int | None:
    """The timestamp of the batch that holds the first unread record."""
    from ottla.client.raw_fetch import RawFetcher
    from ottla.records.batch import iter_batches

    fetcher = RawFetcher(client, tp, start, end, max_bytes=MAX_FETCH_BYTES, timeout_ms=TIMEOUT_MS)
    for chunk in fetcher:
        for batch in iter_batches(chunk.data):
            if batch.last_offset >= start and not batch.is_control:
                return int(batch.max_timestamp if batch.base_timestamp < 0 else batch.base_timestamp)
    return None
