"""How many partitions repartition topics have: as many as the largest topic of the subtopology that writes to them.

One may depend on another. Apache goes through the subtopologies again and again until all is decided, and each decides
as soon as it knows the size of any of its topics, which need not be the largest. The same is decided here by visiting
a subtopology only when it can decide, at the turn at which Apache would: in no more than a sort's time, however long
the chain is that a topology makes.
"""

import heapq
from collections.abc import Callable, Sequence
from itertools import chain

from ottla.model.errors import ErrorCode, KafkaError
from ottla.wire.messages.streams_group_log import Subtopology

# A round and a place in it.
Turn = tuple[int, int]


class RepartitionCounts:
    """Used once. `count_of` is how many partitions a topic has that exists."""

    def __init__(self, subtopologies: Sequence[Subtopology], count_of: Callable[[str], int | None]) -> None:
        self._subtopologies = subtopologies
        self._count_of = count_of
        self._counts: dict[str, int] = {}
        self._readers: dict[str, list[int]] = {}
        self._due: list[Turn] = []
        self._seen: set[int] = set()

    def decided(self) -> dict[str, int]:
        """By topic; STREAMS_INVALID_TOPOLOGY if some depend on nothing but themselves."""
        for place, subtopology in enumerate(self._subtopologies):
            for topic in subtopology.repartition_source_topics:
                self._readers.setdefault(topic.name, []).append(place)
                if topic.partitions:
                    self._counts[topic.name] = topic.partitions
        for place in range(len(self._subtopologies)):
            if self._largest_input(place) is not None:
                self._visit(place, (0, -1))
        while self._due:
            self._decide(heapq.heappop(self._due))
        sinks = chain.from_iterable(s.repartition_sink_topics for s in self._subtopologies)
        if any(topic not in self._counts for topic in sinks):
            raise KafkaError(
                ErrorCode.STREAMS_INVALID_TOPOLOGY,
                "The partitions of a repartition topic depend on themselves.",
            )
        return self._counts

    def _visit(self, place: int, after: Turn) -> None:
        """At its next turn after this one, unless it was to be visited before."""
        if place not in self._seen:
            self._seen.add(place)
            heapq.heappush(self._due, (after[0] if place > after[1] else after[0] + 1, place))

    def _decide(self, turn: Turn) -> None:
        count = self._largest_input(turn[1])
        assert count is not None, "it is visited when it can decide"
        for topic in self._subtopologies[turn[1]].repartition_sink_topics:
            if topic not in self._counts:
                self._counts[topic] = count
                for reader in self._readers.get(topic, ()):
                    self._visit(reader, turn)

    def _largest_input(self, place: int) -> int | None:
        subtopology = self._subtopologies[place]
        repartition = (self._counts.get(topic.name) for topic in subtopology.repartition_source_topics)
        sources = (self._count_of(topic) for topic in subtopology.source_topics)
        return max((count for count in (*repartition, *sources) if count is not None), default=None)
