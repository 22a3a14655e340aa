"""Access rules come and go: what is written, what is refused, and what is too much."""

from itertools import count
from typing import Any

import pytest
from tests.unit.controller.support import Cluster

from ottla.controller.access import acl_control
from ottla.controller.access.acl_control import candidates, create_acls, delete_acls
from ottla.controller.result import MAX_RECORDS_PER_USER_OP
from ottla.metadata.image import binding_of
from ottla.metadata.records import AccessControlEntryRecord, RemoveAccessControlEntryRecord
from ottla.model.errors import ErrorCode, KafkaError
from ottla.model.ids import Uuid
from ottla.model.time_slice import run_to_end
from ottla.security.acls import MAX_BEGINNINGS, AclBindingFilter, PatternType
from ottla.wire.messages.security import acls as m

TOPIC, CLUSTER, LITERAL, PREFIXED, READ, WRITE, DENY, ALLOW = 2, 4, 3, 4, 3, 4, 2, 3
ANY = 1


def creation(name: str = "orders", **more: Any) -> m.AclCreation:
    fields = {
        "resource_type": TOPIC,
        "resource_pattern_type": LITERAL,
        "principal": "User:alice",
        "host": "*",
        "operation": READ,
        "permission_type": ALLOW,
    }
    return m.AclCreation(resource_name=name, **{**fields, **more})


def matching(**more: Any) -> m.DeleteAclsFilter:
    fields = {
        "resource_type_filter": ANY,
        "resource_name_filter": None,
        "pattern_type_filter": ANY,
        "principal_filter": None,
        "host_filter": None,
        "operation": ANY,
        "permission_type": ANY,
    }
    return m.DeleteAclsFilter(**{**fields, **more})


class Rules:
    """A cluster, and ids that are not by chance."""

    def __init__(self) -> None:
        self.cluster = Cluster()
        self._ids = count(1)

    def new_uuid(self) -> Uuid:
        return Uuid(next(self._ids).to_bytes(16, "big"))

    def create(self, *wanted: m.AclCreation) -> list[tuple[int, str | None]]:
        request = m.CreateAclsRequest(creations=list(wanted))
        result = run_to_end(create_acls(self.cluster.rules, request, self.new_uuid))
        assert result.atomic
        self.cluster.take(result)
        return [(r.error_code, r.error_message) for r in result.response.results]

    def delete(self, *filters: m.DeleteAclsFilter) -> list[tuple[int, list[str]]]:
        """The error of each filter, and the names of the resources whose rules it has removed."""
        result = run_to_end(delete_acls(self.cluster.rules, m.DeleteAclsRequest(filters=list(filters))))
        assert all(isinstance(record, RemoveAccessControlEntryRecord) for record in result.records)
        assert len({record.id for record in result.records}) == len(result.records)
        self.cluster.take(result)
        return [
            (r.error_code, sorted(acl.resource_name for acl in r.matching_acls))
            for r in result.response.filter_results
        ]

    @property
    def names(self) -> list[str]:
        return sorted(record.resource_name for record in self.cluster.image.acls.values())


@pytest.fixture
def rules() -> Rules:
    return Rules()


def test_a_rule_is_written_once(rules: Rules) -> None:
    ok = (0, "")
    assert rules.create(creation(), creation(), creation("ord", resource_pattern_type=PREFIXED)) == [ok] * 3
    assert rules.create(creation(), creation(operation=WRITE)) == [ok] * 2
    assert rules.names == ["ord", "orders", "orders"]
    (written,) = (
        r for r in rules.cluster.image.acls.values() if (r.resource_name, r.operation) == ("orders", READ)
    )
    assert written == AccessControlEntryRecord(
        id=written.id,
        resource_type=TOPIC,
        resource_name="orders",
        pattern_type=LITERAL,
        principal="User:alice",
        host="*",
        operation=READ,
        permission_type=ALLOW,
    )


def test_what_is_wrong_with_one_is_said_at_its_place(rules: Rules) -> None:
    invalid = ErrorCode.INVALID_REQUEST
    found = rules.create(
        creation(""),
        creation(resource_type=CLUSTER),
        creation(),
        creation(resource_type=99),
        creation(operation=ANY),
        creation(principal="alice"),
    )
    assert [code for code, _ in found] == [invalid, invalid, 0, invalid, invalid, invalid]
    assert found[0][1] == "Invalid empty resource name"
    assert found[3][1] == "Invalid resourceType UNKNOWN"
    assert rules.names == ["orders"]


def test_an_id_is_not_given_twice(rules: Rules) -> None:
    rules.create(creation("a"))
    (taken,) = rules.cluster.image.acls
    ids = iter([taken, taken, rules.new_uuid()])
    request = m.CreateAclsRequest(creations=[creation("b")])
    result = run_to_end(create_acls(rules.cluster.rules, request, lambda: next(ids)))
    assert [record.id for record in result.records] != [taken]


def test_too_many_at_once(rules: Rules) -> None:
    many = [creation(f"t{n}") for n in range(MAX_RECORDS_PER_USER_OP)]
    with pytest.raises(KafkaError) as refused:
        rules.create(*many, creation("one-more"))
    assert refused.value.code is ErrorCode.POLICY_VIOLATION
    # Those that are there, or are wrong, are not written and do not count.
    rules.create(creation("one-more"))
    assert set(rules.create(*many, creation("one-more"), creation(""))) == {
        (0, ""),
        (ErrorCode.INVALID_REQUEST, "Invalid empty resource name"),
    }
    assert len(rules.names) == MAX_RECORDS_PER_USER_OP + 1
    with pytest.raises(KafkaError, match="Cannot remove more than 10000 acls") as too_many:
        rules.delete(matching())
    assert too_many.value.code is ErrorCode.INVALID_REQUEST
    assert rules.delete(matching(resource_name_filter="one-more")) == [(0, ["one-more"])]
    ((code, gone),) = rules.delete(matching())
    assert (code, len(gone), rules.names) == (0, MAX_RECORDS_PER_USER_OP, [])


def test_every_filter_says_what_it_matched(rules: Rules) -> None:
    rules.create(
        creation("a"),
        creation("ab", resource_pattern_type=PREFIXED),
        creation("*"),
        creation("abc", operation=WRITE),
        creation("other", principal="User:bob", permission_type=DENY),
    )
    assert rules.delete(
        matching(resource_name_filter="abc", pattern_type_filter=2),
        matching(principal_filter="User:bob"),
        matching(operation=WRITE),
        matching(resource_type_filter=3),
        matching(operation=0),
        matching(pattern_type_filter=77),
    ) == [
        (0, ["*", "ab", "abc"]),
        (0, ["other"]),
        (0, ["abc"]),
        (0, []),
        (ErrorCode.INVALID_REQUEST, []),
        (ErrorCode.INVALID_REQUEST, []),
    ]
    assert rules.names == ["a"]


def test_a_filter_that_leaves_nothing_open(rules: Rules) -> None:
    rules.create(creation(), creation("*"), creation(operation=WRITE))
    exact = matching(
        resource_type_filter=TOPIC,
        resource_name_filter="orders",
        pattern_type_filter=LITERAL,
        principal_filter="User:alice",
        host_filter="*",
        operation=READ,
        permission_type=ALLOW,
    )
    assert rules.delete(exact) == [(0, ["orders"])]
    assert rules.delete(exact) == [(0, [])]
    assert rules.names == ["*", "orders"]


def test_what_a_filter_names_is_found_among_thousands(rules: Rules) -> None:
    rules.create(
        *(creation(f"t{n}") for n in range(2_000)),
        creation("t1", operation=WRITE),
        creation("t", resource_pattern_type=PREFIXED),
        creation("*"),
    )

    def looked_at(wanted: AclBindingFilter) -> list[str]:
        return sorted(binding.name for binding, _ in candidates(rules.cluster.image, wanted))

    named = AclBindingFilter(name="t1", principal="User:alice")
    assert looked_at(named) == ["t1", "t1"]
    assert looked_at(named._replace(pattern_type=PatternType.MATCH)) == ["*", "t", "t1", "t1"]
    assert looked_at(named._replace(name="nobody")) == []
    assert len(looked_at(named._replace(name=None))) == 2_003
    # A name that has too many beginnings is looked for among all.
    long = AclBindingFilter(name="t" * (MAX_BEGINNINGS + 1), pattern_type=PatternType.MATCH)
    assert len(looked_at(long)) == 2_003
    assert rules.delete(matching(resource_name_filter=long.name, pattern_type_filter=2)) == [(0, ["*", "t"])]
    assert rules.delete(matching(resource_name_filter="t1")) == [(0, ["t1", "t1"])]
    assert (len(rules.names), looked_at(named)) == (1_999, [])


def test_a_rule_that_a_log_holds_twice_goes_whole(rules: Rules) -> None:
    rules.create(creation())
    (record,) = rules.cluster.image.acls.values()
    twin = AccessControlEntryRecord(**{**vars_of(record), "id": rules.new_uuid()})
    rules.cluster.apply(twin)
    assert len(rules.cluster.image.acl_ids_of(binding_of(record))) == 2
    assert rules.delete(matching()) == [(0, ["orders"])]
    assert rules.names == []
    assert len(rules.cluster.image.acl_ids) == 0


def vars_of(record: AccessControlEntryRecord) -> dict[str, Any]:
    names = (
        "resource_type",
        "resource_name",
        "pattern_type",
        "principal",
        "host",
        "operation",
        "permission_type",
    )
    return {name: getattr(record, name) for name in names}


def test_filters_that_together_match_too_much(rules: Rules, monkeypatch: pytest.MonkeyPatch) -> None:
    rules.create(*(creation(f"t{n}") for n in range(20)))
    monkeypatch.setattr(acl_control, "MAX_MATCHES", 30)
    with pytest.raises(KafkaError) as refused:
        rules.delete(matching(), matching())
    assert refused.value.code is ErrorCode.INVALID_REQUEST
    monkeypatch.setattr(acl_control, "MAX_COMPARISONS", 30)
    with pytest.raises(KafkaError):
        rules.delete(matching(operation=WRITE), matching(operation=WRITE))
    assert rules.delete(matching(operation=WRITE)) == [(0, [])], "one is always looked at"
    # What a filter names is all that it is held against.
    named = [matching(resource_name_filter=f"t{n}", operation=WRITE) for n in range(20)]
    assert rules.delete(*named) == [(0, [])] * 20
    with pytest.raises(KafkaError):
        rules.delete(*named, *named)
    assert len(rules.names) == 20
