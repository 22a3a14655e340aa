"""Client quotas: which entities and values there may be."""

from math import inf, nan

import pytest
from tests.unit.controller.support import Cluster

from ottla.controller.access.client_quota_control import alter_client_quotas, host_names
from ottla.model.errors import ErrorCode
from ottla.model.time_slice import run_to_end
from ottla.wire.messages.admin import quotas as m

Entity = dict[str, str | None]
Ops = dict[str, float | None]
ALICE: Entity = {"user": "alice"}
BYTES = "producer_byte_rate"
RATE = "connection_creation_rate"


def entry(entity: Entity, ops: Ops | list[tuple[str, float]]) -> m.AlterClientQuotasRequestEntryData:
    return m.AlterClientQuotasRequestEntryData(
        entity=[m.EntityData(entity_type=kind, entity_name=name) for kind, name in entity.items()],
        ops=[
            m.OpData(key=key, value=0.0 if value is None else value, remove=value is None)
            for key, value in (ops.items() if isinstance(ops, dict) else ops)
        ],
    )


def alter(
    cluster: Cluster,
    *entries: m.AlterClientQuotasRequestEntryData,
    validate_only: bool = False,
    known_hosts: tuple[str, ...] = (),
) -> list[int]:
    request = m.AlterClientQuotasRequest(entries=list(entries), validate_only=validate_only)
    result = run_to_end(alter_client_quotas(cluster.rules, request, known_hosts))
    assert result.atomic or not result.records
    cluster.take(result)
    assert all(answer.error_message or not answer.error_code for answer in result.response.entries)
    return [answer.error_code for answer in result.response.entries]


def test_quotas_are_set_changed_and_removed() -> None:
    cluster = Cluster(1)
    both: Entity = {"user": "alice", "client-id": None}
    assert (
        alter(
            cluster,
            entry(ALICE, {BYTES: 1000, "request_percentage": 12.5}),
            entry(both, {"consumer_byte_rate": 5}),
            entry({"ip": "10.0.0.1"}, {RATE: 7}),
            entry({"ip": None}, {RATE: 9}),
            entry({"client-id": None}, {"controller_mutation_rate": 0.5}),
        )
        == [0] * 5
    )
    assert dict(cluster.image.client_quotas) == {
        (("user", "alice"),): {BYTES: 1000.0, "request_percentage": 12.5},
        (("client-id", None), ("user", "alice")): {"consumer_byte_rate": 5.0},
        (("ip", "10.0.0.1"),): {RATE: 7.0},
        (("ip", None),): {RATE: 9.0},
        (("client-id", None),): {"controller_mutation_rate": 0.5},
    }
    assert alter(cluster, entry(ALICE, {BYTES: 2000, "request_percentage": None})) == [0]
    assert alter(cluster, entry(both, {"consumer_byte_rate": None})) == [0]
    quotas = cluster.image.client_quotas
    assert quotas[(("user", "alice"),)] == {BYTES: 2000.0}
    assert (("client-id", None), ("user", "alice")) not in quotas


def test_what_changes_nothing_writes_nothing() -> None:
    cluster = Cluster(1)
    alter(cluster, entry(ALICE, {BYTES: 1000}))
    before = cluster.image
    assert alter(cluster, entry(ALICE, {BYTES: 1000})) == [0]
    assert alter(cluster, entry(ALICE, {"consumer_byte_rate": None, "nonsense": None})) == [0]
    assert alter(cluster, entry(ALICE, {})) == [0]
    assert cluster.image is before


@pytest.mark.parametrize(
    ("entity", "ops"),
    [
        (ALICE, {BYTES: 0.0}),
        (ALICE, {BYTES: -0.0}),
        (ALICE, {BYTES: -1.0}),
        (ALICE, {BYTES: nan}),
        (ALICE, {BYTES: inf}),
        (ALICE, {"request_percentage": inf}),
        (ALICE, {"request_percentage": nan}),
        (ALICE, {"request_percentage": -inf}),
        (ALICE, {BYTES: 1.5}),
        (ALICE, {BYTES: 2.0**64}),
        (ALICE, {"nonsense": 1.0}),
        (ALICE, {"": 1.0}),
        (ALICE, {RATE: 1.0}),
        (ALICE, {BYTES: 1.0, "nonsense": 1.0}),
        ({"user": ""}, {BYTES: 1.0}),
        ({"client-id": ""}, {BYTES: 1.0}),
        ({"group": "g"}, {BYTES: 1.0}),
        ({"user": "alice", "group": "g"}, {BYTES: 1.0}),
        ({"": "x"}, {BYTES: 1.0}),
        ({}, {BYTES: 1.0}),
        ({}, {}),
        ({"ip": "10.0.0.1"}, {BYTES: 1.0}),
        ({"ip": "10.0.0.1"}, {RATE: 1.5}),
        ({"ip": "10.0.0.1"}, {RATE: 2.0**31}),
        ({"ip": ""}, {RATE: 1.0}),
        ({"ip": "nowhere.invalid"}, {RATE: 1.0}),
        ({"ip": "10.0.0.1", "user": "alice"}, {RATE: 1.0}),
        ({"ip": None, "client-id": None}, {RATE: 1.0}),
    ],
)
def test_what_cannot_be_changes_nothing(entity: Entity, ops: Ops) -> None:
    cluster = Cluster(1)
    before = cluster.image
    assert alter(cluster, entry(entity, ops)) == [ErrorCode.INVALID_REQUEST]
    assert cluster.image is before


@pytest.mark.parametrize(
    ("entity", "ops"),
    [
        (ALICE, {BYTES: 1.0000001}),
        (ALICE, {BYTES: 2.0**62}),
        (ALICE, {"request_percentage": 1e-9}),
        ({"ip": "::1"}, {RATE: 2.0**31 - 1}),
        ({"user": "a/b c%", "client-id": "<default>"}, {BYTES: 1.0}),
    ],
)
def test_what_is_just_right(entity: Entity, ops: Ops) -> None:
    assert alter(Cluster(1), entry(entity, ops)) == [0]


def test_an_entity_named_twice_is_not_changed() -> None:
    cluster = Cluster(1)
    before = cluster.image
    swapped = entry({"client-id": "c", "user": "u"}, {BYTES: 2})
    assert alter(cluster, entry({"user": "u", "client-id": "c"}, {BYTES: 1}), swapped) == [42]
    assert alter(cluster, entry(ALICE, [(BYTES, 1), (BYTES, 2)])) == [42]
    assert cluster.image is before


def test_each_entity_fares_by_itself() -> None:
    cluster = Cluster(1)
    bob: Entity = {"user": "bob"}
    assert alter(cluster, entry(ALICE, {BYTES: -1}), entry(bob, {BYTES: 1})) == [42, 0]
    assert list(cluster.image.client_quotas) == [(("user", "bob"),)]


def test_validating_changes_nothing() -> None:
    cluster = Cluster(1)
    before = cluster.image
    entries = (entry(ALICE, {BYTES: 1}), entry(ALICE | {"client-id": "c"}, {BYTES: 0}))
    assert alter(cluster, *entries, validate_only=True) == [0, 42]
    assert cluster.image is before


def test_hosts_are_known_or_not() -> None:
    cluster = Cluster(1)
    named = entry({"ip": "db.example"}, {RATE: 1})
    request = m.AlterClientQuotasRequest(
        entries=[named, named, entry({"ip": "::1"}, {}), entry({"ip": None}, {}), entry(ALICE, {})]
    )
    assert host_names(request) == ["db.example"]
    assert alter(cluster, named) == [42]
    assert alter(cluster, named, known_hosts=("db.example",)) == [0]
    # As it was written: brokers ask for its address themselves.
    assert (("ip", "db.example"),) in cluster.image.client_quotas


def test_thousands_are_decided_in_steps() -> None:
    request = m.AlterClientQuotasRequest(entries=[entry({"user": f"u{n}"}, {BYTES: 1}) for n in range(1_000)])
    assert sum(1 for _ in alter_client_quotas(Cluster(1).rules, request)) > 20
