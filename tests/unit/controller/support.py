"""Clusters for decisions: images made of records, and requests made short."""

from collections.abc import Callable, Sequence
from random import Random

from ottla.config.broker import BrokerConfig
from ottla.controller import replication_control
from ottla.controller.result import ControllerResult, RequestContext
from ottla.controller.rules import ClusterRules, ControllerSettings
from ottla.controller.topics import Sources
from ottla.metadata import records as r
from ottla.metadata.delta import ImageBuilder
from ottla.metadata.features import SUPPORTED_FEATURES
from ottla.metadata.image import EMPTY_IMAGE, ClusterImage
from ottla.model.time_slice import run_to_end
from ottla.wire.messages.nodes import broker_lifecycle as lifecycle

CLUSTER_ID = "cluster"
CONTEXT = RequestContext(api_version=99)


def directory(broker_id: int) -> bytes:
    return bytes([100 + broker_id] * 16)


def topic_id(name: str) -> bytes:
    return name.encode().ljust(16, b"\1")


def settings(**values: object) -> ControllerSettings:
    named = {name.replace("_", "."): value for name, value in values.items()}
    config = BrokerConfig.of(
        {
            "node.id": 1,
            "process.roles": "broker,controller",
            "listeners": "PLAINTEXT://127.0.0.1:9092,CONTROLLER://127.0.0.1:9093",
            "controller.listener.names": "CONTROLLER",
            "controller.quorum.bootstrap.servers": "127.0.0.1:9093",
            **named,
        }
    )
    return ControllerSettings(config, CLUSTER_ID)


class Cluster:
    """An image that decisions are made on, and replayed to."""

    def __init__(self, *brokers: int, elr: bool = True, **values: object) -> None:
        self.settings = settings(**values)
        self.image: ClusterImage = EMPTY_IMAGE
        self.apply(r.FeatureLevelRecord(name="metadata.version", feature_level=30))
        if elr:
            self.apply(
                r.FeatureLevelRecord(name="eligible.leader.replicas.version", feature_level=1),
                r.ConfigRecord(resource_type=4, resource_name="", name="min.insync.replicas", value="1"),
            )
        for broker_id in brokers:
            self.add_broker(broker_id)

    @property
    def rules(self) -> ClusterRules:
        return ClusterRules(self.image, self.settings)

    def apply(self, *records: r.MetadataRecord) -> None:
        builder = ImageBuilder(self.image)
        base = self.image.offset + 1
        for index, record in enumerate(records):
            builder.apply(record, base + index)
        self.image, _ = builder.build(base + len(records) - 1, 1, 1000)

    def take(self, result: ControllerResult[object]) -> None:
        """Replays what was decided."""
        if result.records:
            self.apply(*result.records)

    def add_broker(self, broker_id: int, fenced: bool = False, rack: str | None = None) -> None:
        epoch = self.image.offset + 1
        self.apply(
            r.RegisterBrokerRecord(
                broker_id=broker_id,
                incarnation_id=bytes([broker_id] * 16),
                broker_epoch=epoch,
                end_points=[],
                features=[
                    r.BrokerFeature(name=n, min_supported_version=v.min, max_supported_version=v.max)
                    for n, v in SUPPORTED_FEATURES.items()
                ],
                rack=rack,
                fenced=fenced,
                log_dirs=[directory(broker_id)],
            )
        )

    def add_topic(self, name: str, assignment: Sequence[Sequence[int]], **configs: str) -> bytes:
        uuid = topic_id(name)
        self.apply(
            r.TopicRecord(name=name, topic_id=uuid),
            *(
                r.ConfigRecord(resource_type=2, resource_name=name, name=key.replace("_", "."), value=value)
                for key, value in configs.items()
            ),
            *(
                r.PartitionRecord(
                    partition_id=number,
                    topic_id=uuid,
                    replicas=list(replicas),
                    isr=list(replicas),
                    leader=replicas[0],
                    leader_epoch=0,
                    partition_epoch=0,
                    directories=[directory(replica) for replica in replicas],
                )
                for number, replicas in enumerate(assignment)
            ),
        )
        return uuid

    def epoch(self, broker_id: int) -> int:
        return self.image.brokers[broker_id].epoch


def sources(seed: int = 1) -> Sources:
    random = Random(seed)
    return Sources(random, lambda: random.randbytes(16))


def registration(
    broker_id: int = 1, incarnation: bytes = b"i" * 16, **fields: object
) -> lifecycle.BrokerRegistrationRequest:
    defaults: dict[str, object] = {
        "broker_id": broker_id,
        "cluster_id": CLUSTER_ID,
        "incarnation_id": incarnation,
        "listeners": [lifecycle.Listener(name="PLAINTEXT", host="h", port=9092, security_protocol=0)],
        "features": [
            lifecycle.Feature(name=n, min_supported_version=v.min, max_supported_version=v.max)
            for n, v in SUPPORTED_FEATURES.items()
        ],
        "rack": None,
        "log_dirs": [directory(broker_id)],
    }
    return lifecycle.BrokerRegistrationRequest(**{**defaults, **fields})


def work_by_itself(
    rules: Callable[[], ClusterRules], take: Callable[[ControllerResult[None]], object]
) -> None:
    """What the active controller does without being asked: `rules` are those of the image by then."""
    take(run_to_end(replication_control.balance_leaders(rules())))
    take(run_to_end(replication_control.elect_unclean_leaders(rules())))
    progress = replication_control.RepairProgress()
    while True:
        repaired = run_to_end(replication_control.repair_partitions(rules(), progress))
        take(repaired)
        if not repaired.more:
            break
