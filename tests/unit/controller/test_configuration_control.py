"""Configuration: incremental and legacy changes, and who may object."""

import pytest
from tests.unit.controller.support import CONTEXT, Cluster

from ottla.controller.cluster_control import fence_broker, unfence_broker
from ottla.controller.configuration_control import alter_configs, incremental_alter_configs
from ottla.controller.result import ControllerResult, RequestContext
from ottla.metadata import records as r
from ottla.metadata.image import ResourceType
from ottla.model.errors import ErrorCode
from ottla.model.time_slice import run_to_end
from ottla.wire.messages.admin import configs as m

SET, DELETE, APPEND, SUBTRACT = range(4)
TOPIC, BROKER, METRICS, GROUP = 2, 4, 16, 32


def change(
    kind: int, name: str, *operations: tuple[str, int, str | None]
) -> m.IncrementalAlterConfigsResource:
    return m.IncrementalAlterConfigsResource(
        resource_type=kind,
        resource_name=name,
        configs=[
            m.IncrementalAlterableConfig(name=key, config_operation=operation, value=value)
            for key, operation, value in operations
        ],
    )


def alter(
    cluster: Cluster,
    *resources: m.IncrementalAlterConfigsResource,
    validate_only: bool = False,
    context: RequestContext = CONTEXT,
) -> list[tuple[int, str | None]]:
    request = m.IncrementalAlterConfigsRequest(resources=list(resources), validate_only=validate_only)
    result = run_to_end(incremental_alter_configs(cluster.rules, request, context))
    cluster.take(result)
    return [(answer.error_code, answer.error_message) for answer in result.response.responses]


def cluster() -> Cluster:
    made = Cluster(1)
    made.add_topic("t", [[1]])
    return made


def test_keys_are_set_and_deleted() -> None:
    c = cluster()
    assert alter(c, change(TOPIC, "t", ("retention.ms", SET, "5"), ("segment.ms", SET, "7"))) == [(0, None)]
    assert c.image.config(ResourceType.TOPIC, "t") == {"retention.ms": "5", "segment.ms": "7"}
    alter(c, change(TOPIC, "t", ("retention.ms", DELETE, None)))
    assert c.image.config(ResourceType.TOPIC, "t") == {"segment.ms": "7"}


def test_lists_are_added_to_and_taken_from() -> None:
    c = cluster()
    alter(c, change(TOPIC, "t", ("cleanup.policy", APPEND, "compact")))
    assert c.image.config(ResourceType.TOPIC, "t") == {"cleanup.policy": "delete,compact"}
    alter(c, change(TOPIC, "t", ("cleanup.policy", SUBTRACT, "delete")))
    assert c.image.config(ResourceType.TOPIC, "t") == {"cleanup.policy": "compact"}
    (answer,) = alter(c, change(TOPIC, "t", ("retention.ms", APPEND, "1")))
    assert answer == (40, "Can't APPEND to key retention.ms because its type is not LIST.")


@pytest.mark.parametrize(
    ("resource", "code", "text"),
    [
        (change(TOPIC, "t", ("nonsense", SET, "1")), 40, "Unknown topic config name: nonsense"),
        (change(TOPIC, "t", ("retention.ms", SET, "x")), 40, "retention.ms"),
        (change(TOPIC, "none", ("retention.ms", SET, "1")), 3, "The topic 'none' does not exist."),
        (change(TOPIC, "", ("retention.ms", SET, "1")), 42, "Default topic resources are not allowed."),
        (change(TOPIC, "a b", ("retention.ms", SET, "1")), 17, "Topic name is invalid"),
        (change(TOPIC, "t", ("retention.ms", 9, "1")), -1, ""),
        (change(BROKER, "x", ("log.cleaner.threads", SET, "1")), 42, "Unable to parse broker name"),
        (change(BROKER, "7", ("log.cleaner.threads", SET, "1")), 102, "No node with id 7 found."),
        (change(BROKER, "1", ("min.insync.replicas", SET, "1")), 40, "Broker-level min.insync.replicas"),
        (change(BROKER, "", ("min.insync.replicas", DELETE, None)), 40, "Cluster-level min.insync.replicas"),
        (change(GROUP, "", ("consumer.session.timeout.ms", SET, "1")), 42, "Default group resources"),
        (change(GROUP, "g", ("nonsense", SET, "1")), 40, "Unknown group config name: nonsense"),
        (change(METRICS, "m", ("nonsense", SET, "1")), 42, "Unknown client metrics configuration"),
        (change(3, "t"), 35, "Unknown resource type 3."),
        (change(TOPIC, "t", ("retention.ms", SET, "9" * 40_000)), 40, "exceeds the maximum value size"),
    ],
)
def test_a_change_that_cannot_be_is_told_why(
    resource: m.IncrementalAlterConfigsResource, code: int, text: str
) -> None:
    c = cluster()
    before = c.image
    ((error, message),) = alter(c, resource)
    assert error == code
    assert text in (message or "")
    assert c.image is before


def test_each_resource_fares_by_itself() -> None:
    c = cluster()
    answers = alter(
        c,
        change(TOPIC, "none", ("retention.ms", SET, "1")),
        change(TOPIC, "t", ("retention.ms", SET, "1")),
        change(GROUP, "g", ("consumer.session.timeout.ms", SET, "50000")),
        change(METRICS, "m", ("interval.ms", SET, "1000")),
    )
    assert [code for code, _ in answers] == [3, 0, 0, 0]
    assert c.image.config(ResourceType.GROUP, "g") == {"consumer.session.timeout.ms": "50000"}
    assert c.image.config(ResourceType.CLIENT_METRICS, "m") == {"interval.ms": "1000"}


def test_a_resource_named_twice_is_not_changed() -> None:
    c = cluster()
    twice = change(TOPIC, "t", ("retention.ms", SET, "1"))
    assert alter(c, twice, twice) == [(42, "Duplicate resource.")]


def test_validating_changes_nothing() -> None:
    c = cluster()
    before = c.image
    assert alter(c, change(TOPIC, "t", ("retention.ms", SET, "1")), validate_only=True) == [(0, None)]
    assert c.image is before


def test_what_changes_nothing_writes_nothing_but_for_brokers() -> None:
    c = cluster()
    alter(c, change(TOPIC, "t", ("retention.ms", SET, "1")))
    before = c.image
    alter(c, change(TOPIC, "t", ("retention.ms", SET, "1")))
    assert c.image is before
    alter(c, change(BROKER, "1", ("log.cleaner.threads", SET, "1")))
    offset = c.image.offset
    alter(c, change(BROKER, "1", ("log.cleaner.threads", SET, "1")))
    assert c.image.offset == offset + 1


def test_a_new_minimum_isr_clears_the_eligible_replicas() -> None:
    c = cluster()
    request = m.IncrementalAlterConfigsRequest(
        resources=[
            change(TOPIC, "t", ("min.insync.replicas", SET, "1")),
            change(BROKER, "", ("min.insync.replicas", SET, "2")),
        ],
        validate_only=False,
    )
    records = run_to_end(incremental_alter_configs(c.rules, request, CONTEXT)).records
    assert [x.topic_name for x in records if isinstance(x, r.ClearElrRecord)] == ["t", ""]


def test_a_new_minimum_isr_does_not_forget_the_last_who_are_complete() -> None:
    c = Cluster(1, 2, 3)
    c.add_topic("t", [[1, 2, 3], [2, 3, 1]], min_insync_replicas="2")

    def partitions() -> list[tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]]:
        return [(p.isr, p.elr, p.last_known_elr) for p in c.image.topics["t"].partitions.values()]

    for broker_id in (3, 1, 2):
        c.take(ControllerResult(None, fence_broker(c.rules, broker_id)))
    before = partitions()
    assert before == [((), (1, 2), (2,)), ((), (1, 2), (2,))]
    higher = change(TOPIC, "t", ("min.insync.replicas", SET, "3"))
    elsewhere = change(BROKER, "", ("min.insync.replicas", SET, "1"))
    for resource in (higher, elsewhere):
        assert alter(c, resource) == [(0, None)]
        assert partitions() == before
    # Whoever leads with a minimum of one commits alone: only one can stay complete, and the last leader is the best.
    assert alter(c, change(TOPIC, "t", ("min.insync.replicas", DELETE, None))) == [(0, None)]
    assert partitions() == [((), (2,), (2,)), ((), (2,), (2,))]
    c.take(ControllerResult(None, unfence_broker(c.rules, c.image.brokers[1])))
    assert partitions() == [((), (2,), (2,)), ((), (2,), (2,))]
    c.take(ControllerResult(None, unfence_broker(c.rules, c.image.brokers[2])))
    assert partitions() == [((2,), (), ()), ((2,), (), ())]


def test_directly_at_a_controller_directories_are_only_uncordoned() -> None:
    c = Cluster(1, log_dirs="/a,/b")
    direct = RequestContext(1, forwarded=False)
    cordon = change(BROKER, "1", ("cordoned.log.dirs", SET, "/a,/b"))
    assert alter(c, cordon, context=direct)[0][0] == ErrorCode.INVALID_CONFIG
    assert alter(c, cordon)[0][0] == 0
    assert alter(c, change(BROKER, "1", ("cordoned.log.dirs", SET, "/b")), context=direct)[0][0] == 0


def test_a_dynamic_setting_that_nobody_can_run_with_stops_nothing() -> None:
    c = cluster()
    assert alter(c, change(BROKER, "1", ("cordoned.log.dirs", SET, "/not/a/log/dir")))[0][0] == 0
    assert alter(c, change(TOPIC, "t", ("retention.ms", SET, "1")))[0][0] == 0


def test_the_dynamic_layers_count_at_once() -> None:
    c = cluster()
    assert c.rules.min_isr(c.image.topics["t"]) == 1
    c.add_broker(2)
    c.add_broker(3)
    c.add_topic("u", [[1, 2, 3]])
    alter(c, change(BROKER, "", ("min.insync.replicas", SET, "2")))
    assert c.rules.min_isr(c.image.topics["u"]) == 2
    assert c.rules.min_isr(c.image.topics["t"]) == 1, "no more than it has replicas"
    alter(c, change(TOPIC, "u", ("min.insync.replicas", SET, "3")))
    assert c.rules.min_isr(c.image.topics["u"]) == 3


# --- legacy


def replace(c: Cluster, kind: int, name: str, **values: str | None) -> tuple[int, str | None]:
    configs = [m.AlterableConfig(name=k.replace("_", "."), value=v) for k, v in values.items()]
    resource = m.AlterConfigsResource(resource_type=kind, resource_name=name, configs=configs)
    request = m.AlterConfigsRequest(resources=[resource], validate_only=False)
    result = run_to_end(alter_configs(c.rules, request, CONTEXT))
    c.take(result)
    answer = result.response.responses[0]
    return answer.error_code, answer.error_message


def test_the_legacy_change_replaces_everything() -> None:
    c = cluster()
    assert replace(c, TOPIC, "t", retention_ms="5", segment_ms="7") == (0, None)
    assert replace(c, TOPIC, "t", segment_ms="8") == (0, None)
    assert c.image.config(ResourceType.TOPIC, "t") == {"segment.ms": "8"}
    assert replace(c, TOPIC, "t") == (0, None)
    assert not c.image.config(ResourceType.TOPIC, "t")


def test_the_legacy_change_may_not_drop_what_elr_needs() -> None:
    c = cluster()
    code, message = replace(c, BROKER, "", log_cleaner_threads="1")
    assert code == ErrorCode.INVALID_CONFIG
    assert message == "Cluster-level min.insync.replicas cannot be removed while ELR is enabled."
