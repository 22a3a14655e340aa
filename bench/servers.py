"""The two sides: each started as its users start it, with the same settings."""

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from bench.load import PARTITIONS, TOPIC
from ottla.client.admin_types import NewTopic
from ottla.client.blocking import Admin
from ottla.model.errors import KafkaError
from tests.interop.apache import ApacheKafka
from tests.interop.ottla_node import OttlaNode
from tests.interop.process import ServerProcess

APACHE, OTTLA = "apache", "ottla"
SIDES = (APACHE, OTTLA)
# As Kafka's own start script gives it.
HEAP = "1G"


def make(side: str, where: Path, settings: Mapping[str, object] | None = None) -> ServerProcess:
    if side == APACHE:
        return ApacheKafka(where / "data", settings, heap=HEAP)
    return OttlaNode(where / "data", settings, env={"PYTHONDONTWRITEBYTECODE": ""})


@contextmanager
def server(side: str, settings: Mapping[str, object] | None = None) -> Iterator[ServerProcess]:
    """A running server in a directory that goes away with it."""
    with tempfile.TemporaryDirectory(prefix=f"bench-{side}-") as where, make(side, Path(where), settings) as it:
        yield it


def create_topic(it: ServerProcess, name: str = TOPIC, partitions: int = PARTITIONS, **configs: str) -> None:
    with Admin(bootstrap_servers=it.address) as admin:
        result = admin.create_topics([NewTopic(name, partitions, 1, configs=configs)])[name]
        if isinstance(result, KafkaError):
            raise result
        while not isinstance(admin.describe_topics([name])[name], KafkaError) and not _has_leaders(admin, name):
            pass


def _has_leaders(admin: Admin, name: str) -> bool:
    topic = admin.describe_topics([name])[name]
    return not isinstance(topic, KafkaError) and all(p.leader >= 0 for p in topic.partitions)
