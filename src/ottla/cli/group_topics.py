"""Topics and partitions as a command line names them: `orders`, `orders:0,3`.

Owned by the process that runs one command.
"""

from __future__ import annotations

from ottla.cli.args import CliError, UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from ottla.client.blocking import Admin
    from ottla.model.ids import TopicPartition


def parse_topic(word: str) -> tuple[str, list[int] | None]:
    """The topic, and its partitions if any are named. A topic's name has no colon."""
    topic, colon, numbers = word.partition(":")
    if not colon:
        return topic, None
    parts = numbers.split(",")
    if not topic or not all(part.isdecimal() for part in parts):
        raise UsageError(f"{word}: it is TOPIC or TOPIC:0,1,2")
    return topic, [int(part) for part in parts]


def topic_partitions(client: Admin, named: Iterable[str]) -> list[TopicPartition]:
    """All partitions that are meant; CliError for one that is not there."""
    from ottla.model.errors import KafkaError
    from ottla.model.ids import TopicPartition

    wanted = [parse_topic(word) for word in named]
    described = client.describe_topics(dict.fromkeys(topic for topic, _ in wanted))
    out: dict[TopicPartition, None] = {}
    for topic, numbers in wanted:
        found = described[topic]
        if isinstance(found, KafkaError):
            raise found
        known = found.partitions
        for number in known if numbers is None else numbers:
            if number not in known:
                raise CliError(f"topic {topic!r} has partitions 0 to {len(known) - 1}, not {number}")
            out[TopicPartition(topic, number)] = None
    return sorted(out)
