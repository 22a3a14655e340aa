"""Access rules (AclBinding): who may or may not do what, on which resources, from where; and filters of rules.

Purpose: the values that requests, the metadata log and authorizers share, with Kafka's names and numbers, and what is
refused before a rule is written (AclControlManager.validateNewAcl, AclApis). Rules: a number that is not known here is
UNKNOWN, never an error: it may be of a newer node. Hosts and principals are compared as text. Stateless.
"""

from collections.abc import Iterable
from enum import IntEnum
from typing import Final, NamedTuple

from ottla.model.errors import ErrorCode, KafkaError

# A resource of this name, if the pattern is literal, is every resource of its type; a host of this name every host.
WILDCARD: Final = "*"
WILDCARD_PRINCIPAL: Final = "User:*"
# The one resource of type CLUSTER.
CLUSTER_NAME: Final = "kafka-cluster"
# A name has as many beginnings as it is long: those of a longer one are not looked up one by one.
MAX_BEGINNINGS: Final = 256
# What a node says that another one does not take for a node.
NODE_IS_REFUSED: Final = (
    "it is not taken for a node of the cluster: the principal that this node logs in as has to be one of super.users "
    "there, or to be allowed CLUSTER_ACTION on the cluster by an ACL"
)


class _Numbered(IntEnum):
    """A number of Kafka's; one that nobody knows, as a later release has them, is UNKNOWN."""

    @classmethod
    def _missing_(cls, value: object) -> "_Numbered":
        unknown: _Numbered = cls["UNKNOWN"]
        return unknown


class ResourceType(_Numbered):
    """What a rule is about."""

    UNKNOWN = 0
    ANY = 1
    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    DELEGATION_TOKEN = 6
    USER = 7


class PatternType(_Numbered):
    """How a rule names resources: LITERAL or PREFIXED; the others are for filters (KIP-290)."""

    UNKNOWN = 0
    ANY = 1
    MATCH = 2
    LITERAL = 3
    PREFIXED = 4


class AclOperation(_Numbered):
    """What somebody may do. There may be thirty of them: authorized operations are a field of 32 bits (KIP-430)."""

    UNKNOWN = 0
    ANY = 1
    ALL = 2
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12
    CREATE_TOKENS = 13
    DESCRIBE_TOKENS = 14
    TWO_PHASE_COMMIT = 15


class AclPermissionType(_Numbered):
    """May they, or may they not?"""

    UNKNOWN = 0
    ANY = 1
    DENY = 2
    ALLOW = 3


class AclBinding(NamedTuple):
    """One rule."""

    resource_type: ResourceType
    name: str
    pattern_type: PatternType
    principal: str
    host: str
    operation: AclOperation
    permission: AclPermissionType

    def __str__(self) -> str:
        return (
            f"{self.permission.name} {self.operation.name} to {self.principal} from host {self.host} on "
            f"{self.resource_type.name} {self.pattern_type.name} {self.name!r}"
        )


def acl_binding(
    resource_type: int,
    name: str,
    pattern_type: int,
    principal: str,
    host: str,
    operation: int,
    permission: int,
) -> AclBinding:
    """A rule from the numbers of a request or a record."""
    return AclBinding(
        ResourceType(resource_type),
        name,
        PatternType(pattern_type),
        principal,
        host,
        AclOperation(operation),
        AclPermissionType(permission),
    )


class AclBindingFilter(NamedTuple):
    """Which rules are meant; None and ANY leave open."""

    resource_type: ResourceType = ResourceType.ANY
    name: str | None = None
    pattern_type: PatternType = PatternType.ANY
    principal: str | None = None
    host: str | None = None
    operation: AclOperation = AclOperation.ANY
    permission: AclPermissionType = AclPermissionType.ANY

    def matches(self, binding: AclBinding) -> bool:
        """MATCH means the rules that count for a resource of this name: literal, wildcard and prefixed ones."""
        return (
            self.resource_type in (ResourceType.ANY, binding.resource_type)
            and self.principal in (None, binding.principal)
            and self.host in (None, binding.host)
            and self.operation in (AclOperation.ANY, binding.operation)
            and self.permission in (AclPermissionType.ANY, binding.permission)
            and self._matches_pattern(binding)
        )

    def _matches_pattern(self, binding: AclBinding) -> bool:
        if self.pattern_type not in (PatternType.ANY, PatternType.MATCH, binding.pattern_type):
            return False
        if self.name is None:
            return True
        if self.pattern_type is not PatternType.MATCH:
            return self.name == binding.name
        if binding.pattern_type is PatternType.LITERAL:
            return binding.name in (self.name, WILDCARD)
        return binding.pattern_type is PatternType.PREFIXED and self.name.startswith(binding.name)

    @property
    def only(self) -> AclBinding | None:
        """The one rule that it can match, if it leaves nothing open."""
        if self.name is None or self.principal is None or self.host is None or not self.is_definite:
            return None
        return AclBinding(
            self.resource_type,
            self.name,
            self.pattern_type,
            self.principal,
            self.host,
            self.operation,
            self.permission,
        )

    @property
    def names(self) -> Iterable[str] | None:
        """The names, each once, that a rule has to have one of for this to match it; None: not to be told."""
        if self.name is None:
            return None
        if self.pattern_type is not PatternType.MATCH:
            return (self.name,)
        if len(self.name) > MAX_BEGINNINGS:
            return None
        return {WILDCARD, *(self.name[:length] for length in range(len(self.name) + 1))}

    @property
    def is_definite(self) -> bool:
        """Does every enumeration in it name one kind?"""
        return (
            self.resource_type > ResourceType.ANY
            and self.pattern_type in (PatternType.LITERAL, PatternType.PREFIXED)
            and self.operation > AclOperation.ANY
            and self.permission > AclPermissionType.ANY
        )


def acl_filter(
    resource_type: int,
    name: str | None,
    pattern_type: int,
    principal: str | None,
    host: str | None,
    operation: int,
    permission: int,
) -> AclBindingFilter:
    """A filter from the numbers of a request."""
    return AclBindingFilter(
        ResourceType(resource_type),
        name,
        PatternType(pattern_type),
        principal,
        host,
        AclOperation(operation),
        AclPermissionType(permission),
    )


# --- what is refused


def check_new_acl(binding: AclBinding) -> None:
    """KafkaError for a rule that may not be written.

    Which operations make sense for a resource is not asked, as in Kafka: such a rule has no effect.
    """
    if binding.resource_type is ResourceType.CLUSTER and binding.name != CLUSTER_NAME:
        raise _invalid(f"The only valid name for the CLUSTER resource is {CLUSTER_NAME}")
    if not binding.name:
        raise _invalid("Invalid empty resource name")
    if binding.resource_type <= ResourceType.ANY:
        raise _invalid(f"Invalid resourceType {binding.resource_type.name}")
    if binding.pattern_type not in (PatternType.LITERAL, PatternType.PREFIXED):
        raise _invalid(f"Invalid patternType {binding.pattern_type.name}")
    if binding.operation <= AclOperation.ANY:
        raise _invalid(f"Invalid operation {binding.operation.name}")
    if binding.permission not in (AclPermissionType.DENY, AclPermissionType.ALLOW):
        raise _invalid(f"Invalid permissionType {binding.permission.name}")
    if ":" not in binding.principal:
        raise _invalid(
            f"Could not parse principal from `{binding.principal}` (no colon is present separating the principal "
            "type from the principal name)"
        )


def check_filter(wanted: AclBindingFilter) -> None:
    """KafkaError for a filter by which nothing may be deleted: who sent it means something that is not known here."""
    if wanted.resource_type is ResourceType.UNKNOWN or wanted.pattern_type is PatternType.UNKNOWN:
        raise _invalid("Unknown patternFilter.")
    if wanted.operation is AclOperation.UNKNOWN or wanted.permission is AclPermissionType.UNKNOWN:
        raise _invalid("Unknown entryFilter.")


def _invalid(message: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_REQUEST, message)


# --- operations and errors by resource (AclEntry)

SUPPORTED_OPERATIONS: Final = {
    ResourceType.TOPIC: (
        AclOperation.READ,
        AclOperation.WRITE,
        AclOperation.CREATE,
        AclOperation.DELETE,
        AclOperation.ALTER,
        AclOperation.DESCRIBE,
        AclOperation.DESCRIBE_CONFIGS,
        AclOperation.ALTER_CONFIGS,
    ),
    ResourceType.GROUP: (
        AclOperation.READ,
        AclOperation.DELETE,
        AclOperation.DESCRIBE,
        AclOperation.DESCRIBE_CONFIGS,
        AclOperation.ALTER_CONFIGS,
    ),
    ResourceType.CLUSTER: (
        AclOperation.CREATE,
        AclOperation.ALTER,
        AclOperation.DESCRIBE,
        AclOperation.CLUSTER_ACTION,
        AclOperation.DESCRIBE_CONFIGS,
        AclOperation.ALTER_CONFIGS,
        AclOperation.IDEMPOTENT_WRITE,
    ),
    ResourceType.TRANSACTIONAL_ID: (
        AclOperation.WRITE,
        AclOperation.DESCRIBE,
        AclOperation.TWO_PHASE_COMMIT,
    ),
    ResourceType.DELEGATION_TOKEN: (AclOperation.DESCRIBE,),
    ResourceType.USER: (AclOperation.CREATE_TOKENS, AclOperation.DESCRIBE_TOKENS),
}

AUTHORIZATION_ERRORS: Final = {
    ResourceType.TOPIC: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ResourceType.GROUP: ErrorCode.GROUP_AUTHORIZATION_FAILED,
    ResourceType.CLUSTER: ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    ResourceType.TRANSACTIONAL_ID: ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    ResourceType.DELEGATION_TOKEN: ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED,
    # Only tokens are made and shown for users.
    ResourceType.USER: ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED,
}


def operation_bits(operations: Iterable[AclOperation]) -> int:
    """Authorized operations as responses say them (KIP-430)."""
    return sum(1 << operation for operation in operations)


# Where a response says nothing of authorized operations, because nobody asked.
NOT_ASKED: Final = -(2**31)
# Everything that makes sense for the resource: what everybody may do without an authorizer.
ALL_TOPIC_OPERATIONS: Final = operation_bits(SUPPORTED_OPERATIONS[ResourceType.TOPIC])
ALL_GROUP_OPERATIONS: Final = operation_bits(SUPPORTED_OPERATIONS[ResourceType.GROUP])
ALL_CLUSTER_OPERATIONS: Final = operation_bits(SUPPORTED_OPERATIONS[ResourceType.CLUSTER])
