"""Feature levels, producer ids, and what a new controller writes first."""

import pytest
from tests.unit.controller.support import Cluster

from ottla.controller.cluster_control import allocate_producer_ids
from ottla.controller.feature_control import KRaftVersion, activation_records, update_features
from ottla.controller.result import RequestContext
from ottla.metadata import records as r
from ottla.metadata.image import EMPTY_IMAGE, ResourceType
from ottla.metadata.snapshot import bootstrap_records
from ottla.model.errors import ErrorCode, KafkaError
from ottla.wire.messages.admin import cluster as m
from ottla.wire.messages.producers import AllocateProducerIdsRequest

UPGRADE, SAFE, UNSAFE = 1, 2, 3
DYNAMIC = KRaftVersion(1)


def update(
    cluster: Cluster,
    *updates: tuple[str, int, int],
    version: int = 2,
    validate_only: bool = False,
    kraft_version: KRaftVersion = DYNAMIC,
) -> m.UpdateFeaturesResponse:
    request = m.UpdateFeaturesRequest(
        feature_updates=[
            m.FeatureUpdateKey(feature=name, max_version_level=level, upgrade_type=kind)
            for name, level, kind in updates
        ],
        validate_only=validate_only,
    )
    result = update_features(cluster.rules, request, RequestContext(version), kraft_version)
    cluster.take(result)
    return result.response


def test_a_feature_goes_up_and_down() -> None:
    cluster = Cluster(1)
    assert update(cluster, ("group.version", 1, UPGRADE)).error_code == 0
    assert cluster.image.features["group.version"] == 1
    assert update(cluster, ("group.version", 0, SAFE)).error_code == 0
    assert "group.version" not in cluster.image.features


@pytest.mark.parametrize(
    ("name", "level", "kind", "text"),
    [
        ("group.version", 9, UPGRADE, "Local controller 1 only supports versions 0-1"),
        ("nonsense", 1, UPGRADE, "Local controller 1 does not support this feature."),
        ("group.version", 1, 0, "The controller does not support the given upgrade type."),
        ("group.version", -1, SAFE, "A feature version cannot be less than 0."),
        ("transaction.version", 1, UPGRADE, "Can't downgrade the version of this feature without setting"),
        ("group.version", 1, SAFE, "Can't downgrade to a newer version."),
        ("metadata.version", 29, SAFE, "Refusing to perform the requested downgrade"),
        ("metadata.version", 29, UNSAFE, "Unsafe metadata downgrade is not supported in this version."),
        ("kraft.version", 0, SAFE, "Can't downgrade the version of this feature."),
    ],
)
def test_an_update_that_cannot_be_is_told_why(name: str, level: int, kind: int, text: str) -> None:
    cluster = Cluster(1)
    update(cluster, ("transaction.version", 2, UPGRADE))
    before = cluster.image
    answer = update(cluster, ("group.version", 1, UPGRADE), (name, level, kind))
    assert answer.error_code == ErrorCode.INVALID_UPDATE_VERSION
    assert answer.error_message is not None
    assert answer.error_message.startswith("The update failed for all features since the following feature")
    assert text in answer.error_message
    assert cluster.image is before, "all or none"


def test_a_broker_that_cannot_follow_holds_a_feature_back() -> None:
    cluster = Cluster()
    cluster.apply(
        r.RegisterBrokerRecord(broker_id=4, incarnation_id=b"4" * 16, broker_epoch=1, rack=None, features=[])
    )
    answer = update(cluster, ("group.version", 1, UPGRADE))
    assert answer.error_message is not None
    assert "Broker 4 does not support this feature." in answer.error_message


def test_a_controller_that_cannot_follow_or_has_not_said_so_holds_a_feature_back() -> None:
    voters = "1@h:1,2@h:2"
    cluster = Cluster(controller_quorum_voters=voters, controller_quorum_bootstrap_servers="")
    answer = update(cluster, ("group.version", 1, UPGRADE))
    assert answer.error_message is not None
    assert "controller 2 has not registered, and may not support this feature" in answer.error_message
    cluster.apply(r.RegisterControllerRecord(controller_id=2, incarnation_id=b"2" * 16))
    answer = update(cluster, ("group.version", 1, UPGRADE))
    assert answer.error_message is not None
    assert "Controller 2 does not support this feature." in answer.error_message


def test_the_quorum_says_whether_its_version_goes_up() -> None:
    cluster = Cluster(1)
    before = cluster.image.offset
    assert update(cluster, ("kraft.version", 1, UPGRADE), kraft_version=KRaftVersion(0)).error_code == 0
    assert cluster.image.offset == before + 1, "there is an offset to wait for"
    refusal = KafkaError(ErrorCode.INVALID_UPDATE_VERSION, "not all of the voters support it")
    answer = update(cluster, ("kraft.version", 1, UPGRADE), kraft_version=KRaftVersion(0, refusal))
    assert answer.error_code == ErrorCode.INVALID_UPDATE_VERSION
    assert answer.error_message is not None
    assert answer.error_message.endswith("had an error: not all of the voters support it")
    assert update(cluster, ("kraft.version", 1, SAFE)).error_code == 0


def test_old_versions_hear_of_each_feature() -> None:
    answer = update(Cluster(1), ("group.version", 1, UPGRADE), version=1)
    assert [(x.feature, x.error_code) for x in answer.results] == [("group.version", 0)]


def test_eligible_replicas_need_one_minimum_isr_for_all() -> None:
    cluster = Cluster(1, elr=False, min_insync_replicas=2)
    cluster.apply(r.ConfigRecord(resource_type=4, resource_name="1", name="min.insync.replicas", value="3"))
    update(cluster, ("eligible.leader.replicas.version", 1, UPGRADE))
    assert cluster.image.elr_enabled
    assert cluster.image.config(ResourceType.BROKER, "") == {"min.insync.replicas": "2"}
    assert not cluster.image.config(ResourceType.BROKER, "1")


def test_validating_changes_nothing() -> None:
    cluster = Cluster(1)
    before = cluster.image
    assert update(cluster, ("group.version", 1, UPGRADE), validate_only=True).error_code == 0
    assert cluster.image is before


# --- producer ids


def allocate(cluster: Cluster, epoch: int | None = None) -> tuple[int, int]:
    request = AllocateProducerIdsRequest(
        broker_id=1, broker_epoch=cluster.epoch(1) if epoch is None else epoch
    )
    result = allocate_producer_ids(cluster.rules, request)
    cluster.take(result)
    return result.response.producer_id_start, result.response.producer_id_len


def test_blocks_follow_one_another() -> None:
    cluster = Cluster(1)
    assert [allocate(cluster) for _ in range(3)] == [(0, 1000), (1000, 1000), (2000, 1000)]
    assert cluster.image.next_producer_id == 3000


def test_a_stale_broker_gets_no_block() -> None:
    with pytest.raises(KafkaError) as error:
        allocate(Cluster(1), epoch=99)
    assert error.value.code is ErrorCode.STALE_BROKER_EPOCH


def test_ids_run_out_before_they_wrap() -> None:
    cluster = Cluster(1)
    cluster.apply(r.ProducerIdsRecord(broker_id=1, next_producer_id=2**63 - 500))
    with pytest.raises(KafkaError, match="Exhausted all producerIds"):
        allocate(cluster)


# --- activation


def test_an_empty_log_begins_with_the_bootstrap_records_in_a_transaction() -> None:
    records = activation_records(EMPTY_IMAGE, -1, bootstrap_records(), 1)
    assert records[0] == r.BeginTransactionRecord(name="Bootstrap records")
    assert records[1:-2] == bootstrap_records()
    assert records[-2] == r.ConfigRecord(
        resource_type=4, resource_name="", name="min.insync.replicas", value="1"
    )
    assert records[-1] == r.EndTransactionRecord()


def test_an_old_metadata_version_knows_no_transactions() -> None:
    bootstrap = bootstrap_records(12)
    assert activation_records(EMPTY_IMAGE, -1, bootstrap, 1) == bootstrap


def test_a_transaction_left_open_is_aborted() -> None:
    abort = r.AbortTransactionRecord(reason="Controller failover")
    assert activation_records(Cluster().image, 5, [], 1) == [abort]
    assert activation_records(EMPTY_IMAGE, 0, bootstrap_records(), 1)[:2] == [
        abort,
        r.BeginTransactionRecord(name="Bootstrap records"),
    ]
    assert activation_records(Cluster().image, -1, [], 1) == []
