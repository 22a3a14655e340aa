"""How far queries are behind, in records and in seconds since the first record not yet read.

It is asked in a thread of its own: brokers that are away are waited for there. While they do not answer there is no
figure, and `problem` says why.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

from ottla.model.ids import TopicPartition

if TYPE_CHECKING:
    from ottla.client.inline import InlineClient


log = logging.getLogger(__name__)

Offsets = Mapping[str, Mapping[str, int]]
Lag = tuple[int | None, float | None]
UNKNOWN_LAG: Lag = (None, None)
LAG_INTERVAL_S = 2.0
LAG_TIMEOUT_MS = 2_000.0
LAG_FETCH_BYTES = 1
# Timestamps are read for so many of the partitions that are behind: the oldest is among the furthest, mostly.
MAX_TIMESTAMPS = 16


class LagWatch:
    """Asks for the lags of all queries again and again, in a thread."""

    def __init__(self, lags: Lags, interval_s: float = LAG_INTERVAL_S) -> None:
        self._lags = lags
        self._interval_s = interval_s
        self._changed = threading.Condition()
        self._wanted: dict[str, Offsets] = {}
        self._found: dict[str, Lag] = {}
        self._rounds = self._hurry_until = 0
        self._is_over = False
        threading.Thread(target=self._run, name="lags", daemon=True).start()

    @property
    def problem(self) -> str | None:
        """Why the brokers gave no answer the last time they were asked."""
        return self._lags.problem

    def want(self, name: str, offsets: Offsets) -> Lag:
        """What was found out last, records and seconds; from now on it is asked for these offsets."""
        with self._changed:
            self._wanted[name] = offsets
            return self._found.get(name, UNKNOWN_LAG)

    def refresh(self, timeout_s: float) -> None:
        """Wait, not for ever, until everything that is wanted by now has been asked for."""
        with self._changed:
            # The round that is under way may have begun before.
            self._hurry_until = wanted = self._rounds + 2
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._rounds >= wanted, timeout_s)

    def close(self) -> None:
        """No more questions. One that is under way ends by itself: nobody waits for brokers that are away."""
        with self._changed:
            self._is_over = True
            self._changed.notify_all()

    def _run(self) -> None:
        while not self._is_over:
            with self._changed:
                wanted = dict(self._wanted)
            found = {
                name: self._lags.of(offsets, int(time.time() * 1000)) for name, offsets in wanted.items()
            }
            with self._changed:
                self._found = found
                self._rounds += 1
                self._changed.notify_all()
                self._changed.wait_for(
                    lambda: self._is_over or self._hurry_until > self._rounds, self._interval_s
                )
        self._lags.close()


class Lags:
    """Asks the brokers, on one connection."""

    def __init__(self, bootstrap: str, options: Mapping[str, str]) -> None:
        from ottla.spark.connection import kafka_options

        self._kafka = kafka_options({"kafka.bootstrap.servers": bootstrap, **options})
        self._client: InlineClient | None = None
        self.problem: str | None = None

    def close(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None

    def of(self, offsets: Offsets, now_ms: int) -> Lag:
        """Records and seconds behind."""
        from ottla.model.errors import KafkaError

        places = {
            TopicPartition(topic, int(partition)): at
            for topic, there in offsets.items()
            for partition, at in there.items()
        }
        if not places:
            return UNKNOWN_LAG
        try:
            found = self._ask(places, now_ms)
        except (KafkaError, OSError) as error:
            self.problem = str(error) or type(error).__name__
        except Exception as error:  # the next time it is asked anew; the figures do without
            log.exception("no lag")
            self.problem = f"{type(error).__name__}: {error}"
        else:
            self.problem = None
            return found
        self.close()
        return UNKNOWN_LAG

    def _ask(self, places: Mapping[TopicPartition, int], now_ms: int) -> tuple[int, float]:
        from ottla.client.offsets import LATEST

        client = self._connected()
        found = client.list_offsets(
            dict.fromkeys(places, LATEST), read_committed=True, timeout_ms=LAG_TIMEOUT_MS
        )
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
    from ottla.client.consumer.inline import RawFetcher
    from ottla.records.batch import iter_batches

    fetcher = RawFetcher(client, tp, start, end, max_bytes=LAG_FETCH_BYTES, timeout_ms=LAG_TIMEOUT_MS)
    for chunk in fetcher:
        for batch in iter_batches(chunk.data):
            if batch.last_offset >= start and not batch.is_control:
                return int(batch.max_timestamp if batch.base_timestamp < 0 else batch.base_timestamp)
    return None
