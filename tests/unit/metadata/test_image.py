"""Images: what each record means, what a delta tells, what two images share."""

import pytest

from ottla.metadata import records as r
from ottla.metadata.delta import Delta, ImageBuilder, MetadataError, difference_in_steps
from ottla.metadata.image import (
    EMPTY_IMAGE,
    ClusterImage,
    ConfigResource,
    ResourceType,
    binding_of,
    image_records,
)
from ottla.metadata.registrations import DIRECTORY_MIGRATING
from ottla.model.time_slice import run_to_end

A, B = bytes([1] * 16), bytes([2] * 16)
DIRECTORY = bytes([9] * 16)


def build(base: ClusterImage, *records: r.MetadataRecord, offset: int = 10) -> tuple[ClusterImage, Delta]:
    builder = ImageBuilder(base)
    for index, record in enumerate(records):
        builder.apply(record, offset + index)
    return builder.build(offset + len(records) - 1, 1, 1000)


def partition(topic_id: bytes, number: int, **fields: object) -> r.PartitionRecord:
    defaults = {"replicas": [1], "isr": [1], "leader": 1, "leader_epoch": 0, "partition_epoch": 0}
    return r.PartitionRecord(topic_id=topic_id, partition_id=number, **{**defaults, **fields})


def broker(broker_id: int = 1, epoch: int = 5) -> r.RegisterBrokerRecord:
    return r.RegisterBrokerRecord(
        broker_id=broker_id,
        incarnation_id=A,
        broker_epoch=epoch,
        end_points=[r.BrokerEndpoint(name="P", host="h", port=1, security_protocol=0)],
        features=[r.BrokerFeature(name="group.version", min_supported_version=0, max_supported_version=1)],
        rack="r",
        log_dirs=[DIRECTORY],
    )


def test_a_topic_with_partitions() -> None:
    image, delta = build(EMPTY_IMAGE, r.TopicRecord(name="t", topic_id=A), partition(A, 0), partition(A, 1))
    topic = image.topic("t")
    assert topic is not None
    assert topic is image.topic_by_id(A)
    assert list(topic.partitions) == [0, 1]
    assert image.partition("t", 1) == topic.partitions[1]
    assert image.partition("t", 2) is None
    assert [t.name for t in delta.created_topics] == ["t"]
    assert delta.topics[A].partitions == {0, 1}
    assert image.offset == 12


def test_partitions_are_in_order_whatever_the_order_of_the_records() -> None:
    image, _ = build(EMPTY_IMAGE, r.TopicRecord(name="t", topic_id=A), *(partition(A, n) for n in (2, 0, 1)))
    topic = image.topic("t")
    assert topic is not None
    assert list(topic.partitions) == [0, 1, 2]


def test_a_change_raises_the_epochs_it_should() -> None:
    image, _ = build(EMPTY_IMAGE, r.TopicRecord(name="t", topic_id=A), partition(A, 0, replicas=[1, 2]))
    changed, delta = build(image, r.PartitionChangeRecord(topic_id=A, partition_id=0, isr=[1, 2]))
    state = changed.partition("t", 0)
    assert state is not None
    assert (state.isr, state.leader, state.leader_epoch, state.partition_epoch) == ((1, 2), 1, 0, 1)
    led, _ = build(changed, r.PartitionChangeRecord(topic_id=A, partition_id=0, leader=2))
    state = led.partition("t", 0)
    assert state is not None
    assert (state.leader, state.leader_epoch, state.partition_epoch) == (2, 1, 2)
    assert delta.topics[A].partitions == {0}
    before = image.partition("t", 0)
    assert before is not None
    assert before.isr == (1,)


def test_replicas_come_and_go_below_the_metadata_version_that_has_directories() -> None:
    image, _ = build(
        EMPTY_IMAGE, r.TopicRecord(name="t", topic_id=A), partition(A, 0, replicas=[1, 2], isr=[1, 2])
    )
    more = r.PartitionChangeRecord(topic_id=A, partition_id=0, replicas=[1, 2, 3], adding_replicas=[3])
    image, _ = build(image, more)
    grown = image.partition("t", 0)
    assert grown is not None
    assert (grown.replicas, grown.directories) == ((1, 2, 3), (DIRECTORY_MIGRATING,) * 3)
    image, _ = build(image, r.PartitionChangeRecord(topic_id=A, partition_id=0, replicas=[3], isr=[3]))
    shrunk = image.partition("t", 0)
    assert shrunk is not None
    assert (shrunk.replicas, shrunk.directories) == ((3,), (DIRECTORY_MIGRATING,))


def test_other_topics_are_shared() -> None:
    image, _ = build(
        EMPTY_IMAGE,
        r.TopicRecord(name="t", topic_id=A),
        partition(A, 0),
        r.TopicRecord(name="u", topic_id=B),
        partition(B, 0),
    )
    changed, _ = build(image, r.PartitionChangeRecord(topic_id=A, partition_id=0, isr=[1]))
    assert changed.topic("u") is image.topic("u")
    assert changed.configs is image.configs
    assert changed.brokers is image.brokers


def test_deleting_a_topic_takes_its_configuration_along() -> None:
    config = r.ConfigRecord(resource_type=2, resource_name="t.x", name="retention.ms", value="1")
    image, _ = build(EMPTY_IMAGE, r.TopicRecord(name="t.x", topic_id=A), config, partition(A, 0))
    assert image.colliding_names["t_x"] == {"t.x"}
    deleted, delta = build(image, r.RemoveTopicRecord(topic_id=A))
    assert deleted.topic("t.x") is None
    assert deleted.topic_by_id(A) is None
    assert not deleted.config(ResourceType.TOPIC, "t.x")
    assert "t_x" not in deleted.colliding_names
    assert [t.name for t in delta.deleted_topics] == ["t.x"]
    assert delta.configs == {ConfigResource(ResourceType.TOPIC, "t.x")}


def test_a_topic_that_lived_between_two_images_leaves_no_trace() -> None:
    image, delta = build(
        EMPTY_IMAGE, r.TopicRecord(name="t", topic_id=A), partition(A, 0), r.RemoveTopicRecord(topic_id=A)
    )
    assert delta.empty
    assert not image.topics


def test_a_topic_recreated_under_its_name_is_another_one() -> None:
    image, _ = build(EMPTY_IMAGE, r.TopicRecord(name="t", topic_id=A), partition(A, 0))
    image, delta = build(
        image, r.RemoveTopicRecord(topic_id=A), r.TopicRecord(name="t", topic_id=B), partition(B, 0)
    )
    topic = image.topic("t")
    assert topic is not None
    assert topic.id == B
    assert [t.id for t in delta.deleted_topics] == [A]
    assert [t.id for t in delta.created_topics] == [B]


def test_a_broker_lives_and_goes() -> None:
    image, _ = build(EMPTY_IMAGE, broker(), offset=7)
    registered = image.brokers[1]
    assert registered.fenced
    assert registered.registered_at_offset == 7
    assert not image.broker_is_active(1)
    image, delta = build(image, r.BrokerRegistrationChangeRecord(broker_id=1, broker_epoch=5, fenced=-1))
    assert image.broker_is_active(1)
    assert delta.brokers == {1}
    image, _ = build(
        image, r.BrokerRegistrationChangeRecord(broker_id=1, broker_epoch=5, in_controlled_shutdown=1)
    )
    assert not image.broker_is_active(1)
    assert not image.brokers[1].fenced
    image, _ = build(image, r.UnregisterBrokerRecord(broker_id=1, broker_epoch=5))
    assert not image.brokers


def test_old_fencing_records_still_count() -> None:
    image, _ = build(EMPTY_IMAGE, broker(), r.UnfenceBrokerRecord(id=1, epoch=5))
    assert image.broker_is_active(1)
    image, _ = build(image, r.FenceBrokerRecord(id=1, epoch=5))
    assert image.brokers[1].fenced


def test_configs_quotas_and_features_come_and_go() -> None:
    quota = r.ClientQuotaRecord(
        entity=[r.EntityData(entity_type="user", entity_name=None)], key="k", value=1.5, remove=False
    )
    image, delta = build(
        EMPTY_IMAGE,
        r.ConfigRecord(resource_type=4, resource_name="", name="a", value="1"),
        quota,
        r.FeatureLevelRecord(name="metadata.version", feature_level=30),
        r.ProducerIdsRecord(broker_id=1, next_producer_id=1000),
    )
    assert image.config(ResourceType.BROKER, "") == {"a": "1"}
    assert image.client_quotas[(("user", None),)] == {"k": 1.5}
    assert image.metadata_version == 30
    assert image.next_producer_id == 1000
    assert delta.producer_ids
    image, _ = build(
        image,
        r.ConfigRecord(resource_type=4, resource_name="", name="a", value=None),
        r.ClientQuotaRecord(entity=quota.entity, key="k", value=0, remove=True),
        r.FeatureLevelRecord(name="metadata.version", feature_level=0),
    )
    assert (len(image.configs), len(image.client_quotas), image.metadata_version) == (0, 0, None)


def test_eligible_leader_replicas_are_cleared_of_one_topic_or_all() -> None:
    elr = {"eligible_leader_replicas": [2], "last_known_elr": [2]}
    image, _ = build(
        EMPTY_IMAGE,
        r.TopicRecord(name="t", topic_id=A),
        partition(A, 0, **elr),
        r.TopicRecord(name="u", topic_id=B),
        partition(B, 0, **elr),
    )
    one, _ = build(image, r.ClearElrRecord(topic_name="t"))
    assert [p.elr for _, _, p in sorted(one.partitions(), key=lambda e: e[0].name)] == [(), (2,)]
    both, _ = build(image, r.ClearElrRecord(topic_name=""))
    assert all(p.elr == () and p.last_known_elr == () for _, _, p in both.partitions())


@pytest.mark.parametrize(
    "record",
    [
        partition(A, 0),
        r.PartitionChangeRecord(topic_id=A, partition_id=0),
        r.RemoveTopicRecord(topic_id=A),
        r.UnregisterBrokerRecord(broker_id=1, broker_epoch=1),
        r.BrokerRegistrationChangeRecord(broker_id=1, broker_epoch=1),
        r.ClearElrRecord(topic_name="t"),
    ],
    ids=lambda record: type(record).__name__,
)
def test_a_record_about_nothing_is_refused(record: r.MetadataRecord) -> None:
    with pytest.raises(MetadataError):
        ImageBuilder(EMPTY_IMAGE).apply(record)


def everything() -> ClusterImage:
    return build(
        EMPTY_IMAGE,
        r.FeatureLevelRecord(name="group.version", feature_level=1),
        r.FeatureLevelRecord(name="metadata.version", feature_level=30),
        broker(1),
        broker(2, 6),
        r.RegisterControllerRecord(
            controller_id=1, incarnation_id=B, zk_migration_ready=False, end_points=[], features=[]
        ),
        r.TopicRecord(name="t", topic_id=A),
        partition(A, 1, directories=[DIRECTORY], eligible_leader_replicas=[1]),
        partition(A, 0, directories=[DIRECTORY], leader_recovery_state=1),
        r.ConfigRecord(resource_type=2, resource_name="t", name="a", value="1"),
        r.ConfigRecord(resource_type=32, resource_name="g", name="b", value=""),
        r.ClientQuotaRecord(
            entity=[
                r.EntityData(entity_type="user", entity_name="u"),
                r.EntityData(entity_type="client-id", entity_name=None),
            ],
            key="k",
            value=2.0,
            remove=False,
        ),
        r.ProducerIdsRecord(broker_id=1, broker_epoch=5, next_producer_id=3000),
        r.AccessControlEntryRecord(
            id=A,
            resource_type=2,
            resource_name="t",
            pattern_type=3,
            principal="User:a",
            host="*",
            operation=3,
            permission_type=3,
        ),
        r.UserScramCredentialRecord(
            name="u", mechanism=1, salt=b"s", stored_key=b"k", server_key=b"v", iterations=4096
        ),
        r.DelegationTokenRecord(
            owner="User:a",
            requester="User:a",
            renewers=["User:b"],
            issue_timestamp=1,
            max_timestamp=2,
            expiration_timestamp=3,
            token_id="x",
        ),
    )[0]


def test_the_records_of_an_image_give_it_back() -> None:
    image = everything()
    records = list(image_records(image))
    assert isinstance(records[0], r.FeatureLevelRecord)
    assert records[0].name == "metadata.version"
    builder = ImageBuilder(EMPTY_IMAGE)
    for record in records:
        builder.apply(record, -1)
    again, _ = builder.build(image.offset, image.epoch, image.timestamp_ms)
    assert again == image
    assert list(image_records(again)) == records


def test_nothing_that_other_nodes_wrote_is_lost() -> None:
    kinds = {type(record) for record in image_records(everything())}
    assert kinds >= {
        r.AccessControlEntryRecord,
        r.UserScramCredentialRecord,
        r.DelegationTokenRecord,
        r.ClientQuotaRecord,
    }


def acl(acl_id: bytes, principal: str = "User:a") -> r.AccessControlEntryRecord:
    return r.AccessControlEntryRecord(
        id=acl_id,
        resource_type=2,
        resource_name="t",
        pattern_type=3,
        principal=principal,
        host="*",
        operation=3,
        permission_type=3,
    )


def test_acls_are_found_by_what_they_say_and_a_delta_tells_which_have_changed() -> None:
    image, delta = build(EMPTY_IMAGE, acl(A), acl(B))
    saying = binding_of(acl(A))
    assert image.acl_ids_of(saying) == image.acl_ids["t"][saying] == {A, B}
    assert sorted(delta.added_acls) == [(A, saying), (B, saying)]
    assert list(delta.removed_acls) == []
    after, delta = build(image, r.RemoveAccessControlEntryRecord(id=A), acl(B, "User:b"))
    assert {name: dict(ids) for name, ids in after.acl_ids.items()} == {
        "t": {binding_of(acl(B, "User:b")): {B}}
    }
    assert after.acl_ids_of(saying) == set()
    assert (list(delta.added_acls), list(delta.removed_acls)) == ([(B, binding_of(acl(B, "User:b")))], [A])
    assert run_to_end(difference_in_steps(image, after)).acls == delta.acls == {A, B}
    # What nobody knows may be removed.
    same, delta = build(after, r.RemoveAccessControlEntryRecord(id=A))
    assert (same.acls, list(delta.added_acls)) == (after.acls, [])
    # Nothing is left of a name without rules.
    none, _ = build(same, r.RemoveAccessControlEntryRecord(id=B))
    assert (len(none.acls), len(none.acl_ids)) == (0, 0)
