"""Access rules: which filters match them, which are refused, and Kafka's numbers."""

import pytest

from ottla.model.errors import ErrorCode, KafkaError
from ottla.security.acls import (
    ALL_CLUSTER_OPERATIONS,
    ALL_GROUP_OPERATIONS,
    ALL_TOPIC_OPERATIONS,
    MAX_BEGINNINGS,
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    PatternType,
    ResourceType,
    acl_binding,
    acl_filter,
    check_filter,
    check_new_acl,
)
from ottla.security.principal import address_bytes, host_address, parse_principal

TOPIC, LITERAL, PREFIXED = ResourceType.TOPIC, PatternType.LITERAL, PatternType.PREFIXED
READ, ALLOW, DENY = AclOperation.READ, AclPermissionType.ALLOW, AclPermissionType.DENY


def rule(name: str = "orders", pattern: PatternType = LITERAL, **more: object) -> AclBinding:
    return AclBinding(TOPIC, name, pattern, "User:alice", "*", READ, ALLOW)._replace(**more)  # type: ignore[arg-type]


def test_numbers_that_nobody_knows_are_unknown() -> None:
    found = acl_binding(99, "x", 99, "User:a", "*", 99, -5)
    assert (found.resource_type, found.pattern_type) == (ResourceType.UNKNOWN, PatternType.UNKNOWN)
    assert (found.operation, found.permission) == (AclOperation.UNKNOWN, AclPermissionType.UNKNOWN)


def test_the_bit_fields_of_kafka() -> None:
    # As Apache Kafka 4.3.1 answers them without an authorizer.
    assert (ALL_TOPIC_OPERATIONS, ALL_GROUP_OPERATIONS, ALL_CLUSTER_OPERATIONS) == (3576, 3400, 8096)


@pytest.mark.parametrize(
    ("wanted", "matched"),
    [
        (AclBindingFilter(), {"orders", "ord", "*", "orders/p", "*/p"}),
        (AclBindingFilter(name="orders"), {"orders", "orders/p"}),
        (AclBindingFilter(name="orders", pattern_type=LITERAL), {"orders"}),
        (AclBindingFilter(name="orders", pattern_type=PREFIXED), {"orders/p"}),
        (AclBindingFilter(name="orders", pattern_type=PatternType.MATCH), {"orders", "*", "orders/p"}),
        (AclBindingFilter(name="orders-1", pattern_type=PatternType.MATCH), {"*", "orders/p"}),
        (AclBindingFilter(name="*", pattern_type=PatternType.MATCH), {"*", "*/p"}),
        (AclBindingFilter(name="*"), {"*", "*/p"}),
        (AclBindingFilter(name="", pattern_type=PatternType.MATCH), {"*"}),
        (AclBindingFilter(pattern_type=PatternType.MATCH), {"orders", "ord", "*", "orders/p", "*/p"}),
        (AclBindingFilter(pattern_type=PatternType.UNKNOWN), set()),
        (AclBindingFilter(resource_type=ResourceType.GROUP), set()),
        (AclBindingFilter(principal="User:*"), set()),
        (AclBindingFilter(host="10.0.0.1"), set()),
        (AclBindingFilter(operation=AclOperation.ALL), set()),
        (AclBindingFilter(permission=DENY), set()),
    ],
)
def test_filters(wanted: AclBindingFilter, matched: set[str]) -> None:
    rules = {
        "orders": rule(),
        "ord": rule("ord"),
        "*": rule("*"),
        "orders/p": rule("orders", PREFIXED),
        "*/p": rule("*", PREFIXED),
    }
    assert {name for name, binding in rules.items() if wanted.matches(binding)} == matched
    names = wanted.names
    assert names is None or {rules[name].name for name in matched} <= set(names), (
        "they are found by their names"
    )


def test_the_names_of_the_rules_that_a_filter_can_match() -> None:
    assert AclBindingFilter(principal="User:a").names is None
    assert set(AclBindingFilter(name="ab").names or ()) == {"ab"}
    longest = AclBindingFilter(name="x" * MAX_BEGINNINGS, pattern_type=PatternType.MATCH)
    found = list(longest.names or ())
    assert len(found) == len(set(found)) == MAX_BEGINNINGS + 2
    assert longest._replace(name="x" * (MAX_BEGINNINGS + 1)).names is None


def test_a_filter_that_leaves_nothing_open_means_one_rule() -> None:
    binding = rule()
    exact = acl_filter(*binding)
    assert exact.only == binding
    assert exact.matches(binding)
    for field, open_value in (
        ("name", None),
        ("principal", None),
        ("host", None),
        ("resource_type", ResourceType.ANY),
        ("pattern_type", PatternType.ANY),
        ("pattern_type", PatternType.MATCH),
        ("operation", AclOperation.ANY),
        ("permission", AclPermissionType.ANY),
    ):
        assert exact._replace(**{field: open_value}).only is None, field  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (rule(""), "Invalid empty resource name"),
        (rule(resource_type=ResourceType.ANY), "Invalid resourceType ANY"),
        (rule(resource_type=ResourceType.UNKNOWN), "Invalid resourceType UNKNOWN"),
        (rule(pattern=PatternType.MATCH), "Invalid patternType MATCH"),
        (rule(pattern=PatternType.ANY), "Invalid patternType ANY"),
        (rule(operation=AclOperation.ANY), "Invalid operation ANY"),
        (rule(operation=AclOperation.UNKNOWN), "Invalid operation UNKNOWN"),
        (rule(permission=AclPermissionType.ANY), "Invalid permissionType ANY"),
        (
            rule(resource_type=ResourceType.CLUSTER),
            "The only valid name for the CLUSTER resource is kafka-cluster",
        ),
        (
            rule("*", resource_type=ResourceType.CLUSTER),
            "The only valid name for the CLUSTER resource is kafka-cluster",
        ),
        (
            rule(principal="alice"),
            "Could not parse principal from `alice` (no colon is present separating the principal type from the "
            "principal name)",
        ),
    ],
)
def test_rules_that_may_not_be_written(bad: AclBinding, message: str) -> None:
    with pytest.raises(KafkaError) as refused:
        check_new_acl(bad)
    assert (refused.value.code, refused.value.message) == (ErrorCode.INVALID_REQUEST, message)


def test_rules_that_may() -> None:
    check_new_acl(rule())
    check_new_acl(rule("*"))
    check_new_acl(rule("kafka-cluster", PREFIXED, resource_type=ResourceType.CLUSTER))
    check_new_acl(rule(principal=":"))
    # That it makes no sense is not asked.
    check_new_acl(rule(operation=AclOperation.CLUSTER_ACTION))


def test_filters_that_name_what_is_unknown_delete_nothing() -> None:
    check_filter(AclBindingFilter())
    for bad, message in (
        (AclBindingFilter(resource_type=ResourceType.UNKNOWN), "Unknown patternFilter."),
        (AclBindingFilter(pattern_type=PatternType.UNKNOWN), "Unknown patternFilter."),
        (AclBindingFilter(operation=AclOperation.UNKNOWN), "Unknown entryFilter."),
        (AclBindingFilter(permission=AclPermissionType.UNKNOWN), "Unknown entryFilter."),
    ):
        with pytest.raises(KafkaError, match=message):
            check_filter(bad)


def test_principals_are_split_at_the_first_colon() -> None:
    assert parse_principal("User:CN=a,OU=b:c") == ("User", "CN=a,OU=b:c", False)
    assert parse_principal(":") == ("", "", False)
    assert parse_principal("nobody") is None


@pytest.mark.parametrize(
    ("host", "spelled"),
    [
        ("10.0.0.1", "10.0.0.1"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("::1", "0:0:0:0:0:0:0:1"),
        ("fe80::A", "fe80:0:0:0:0:0:0:a"),
    ],
)
def test_hosts_are_spelled_as_java_does(host: str, spelled: str) -> None:
    assert host_address(address_bytes(host)) == spelled
