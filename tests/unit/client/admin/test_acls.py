"""Access rules as the admin client asks for them, and what it makes of answers that are odd."""

import asyncio

import pytest
from tests.unit.client.admin.test_users import Admin, only

from ottla.client.errors import ProtocolError
from ottla.model.errors import ErrorCode, KafkaError
from ottla.security.acls import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    PatternType,
    ResourceType,
)
from ottla.wire.messages.security import acls as m

RULE = AclBinding(
    ResourceType.TOPIC,
    "t",
    PatternType.PREFIXED,
    "User:alice",
    "*",
    AclOperation.READ,
    AclPermissionType.ALLOW,
)


def described(**more: object) -> m.DescribeAclsResponse:
    acl = m.AclDescription(principal="User:alice", host="*", operation=3, permission_type=3)
    # One that only a newer node knows.
    newer = m.AclDescription(principal="User:alice", host="*", operation=99, permission_type=3)
    resource = m.DescribeAclsResource(resource_type=2, resource_name="t", pattern_type=4, acls=[newer, acl])
    return m.DescribeAclsResponse(**{"error_message": None, "resources": [resource], **more})


def test_rules_are_described() -> None:
    admin = Admin(lambda _: described())
    unknown = RULE._replace(operation=AclOperation.UNKNOWN)
    assert asyncio.run(admin.describe_acls()) == sorted([RULE, unknown])
    request = only(admin)
    assert (request.resource_type_filter, request.pattern_type_filter, request.operation) == (1, 1, 1)
    assert (request.resource_name_filter, request.principal_filter, request.host_filter) == (None, None, None)


def test_a_cluster_without_an_authorizer_is_told_of() -> None:
    admin = Admin(lambda _: described(error_code=ErrorCode.SECURITY_DISABLED))
    with pytest.raises(KafkaError, match=r"no authorizer \(authorizer.class.name\)") as refused:
        asyncio.run(admin.describe_acls())
    assert refused.value.code is ErrorCode.SECURITY_DISABLED


def test_a_rule_is_asked_for_once() -> None:
    admin = Admin(lambda _: m.CreateAclsResponse(results=[m.AclCreationResult(error_message=None)]))
    assert asyncio.run(admin.create_acls([RULE, RULE])) == {RULE: None}
    (creation,) = only(admin).creations
    assert (creation.resource_pattern_type, creation.principal, creation.operation) == (4, "User:alice", 3)


def test_errors_belong_to_their_rules() -> None:
    other = RULE._replace(name="")
    results = [
        m.AclCreationResult(error_message=None),
        m.AclCreationResult(error_code=ErrorCode.INVALID_REQUEST, error_message="no name"),
    ]
    admin = Admin(lambda _: m.CreateAclsResponse(results=results))
    answered = asyncio.run(admin.create_acls([RULE, other]))
    refusal = answered[other]
    assert answered[RULE] is None
    assert refusal is not None
    assert "no name" in str(refusal)


def test_an_answer_to_something_else_is_no_answer() -> None:
    filters = [AclBindingFilter(name="a"), AclBindingFilter(name="b")]
    with pytest.raises(ProtocolError):
        asyncio.run(Admin(lambda _: m.CreateAclsResponse(results=[])).create_acls([RULE]))
    with pytest.raises(ProtocolError):
        asyncio.run(Admin(lambda _: m.DeleteAclsResponse(filter_results=[])).delete_acls(filters))


def test_what_is_deleted_is_told_by_filter() -> None:
    def matching(**more: object) -> m.DeleteAclsMatchingAcl:
        return m.DeleteAclsMatchingAcl(
            **{
                "error_message": None,
                "resource_type": 2,
                "resource_name": "t",
                "pattern_type": 4,
                "principal": "User:alice",
                "host": "*",
                "operation": 3,
                "permission_type": 3,
                **more,
            }
        )

    gone, kept, refused = (AclBindingFilter(name=name) for name in "abc")
    failing = matching(error_code=ErrorCode.UNKNOWN_SERVER_ERROR)
    results = [
        m.DeleteAclsFilterResult(error_message=None, matching_acls=[matching()]),
        m.DeleteAclsFilterResult(error_message=None, matching_acls=[matching(), failing]),
        m.DeleteAclsFilterResult(error_code=ErrorCode.INVALID_REQUEST, error_message="odd", matching_acls=[]),
    ]
    admin = Admin(lambda _: m.DeleteAclsResponse(filter_results=results))
    answered = asyncio.run(admin.delete_acls([gone, kept, refused]))
    assert answered[gone] == [RULE]
    for each in (kept, refused):
        assert isinstance(answered[each], KafkaError)
