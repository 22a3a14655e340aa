"""Rules for tests: who they are for, and an authorizer that knows nothing else."""

from ottla.model.ids import Uuid
from ottla.security.acls import (
    CLUSTER_NAME,
    AclBinding,
    AclOperation,
    AclPermissionType,
    PatternType,
    ResourceType,
)
from ottla.security.authorizer import StandardAuthorizer
from ottla.security.principal import KafkaPrincipal

ALICE, BOB = KafkaPrincipal("User", "alice"), KafkaPrincipal("User", "bob")


def rule(
    operation: AclOperation,
    name: str = CLUSTER_NAME,
    *,
    kind: ResourceType = ResourceType.TOPIC,
    principal: KafkaPrincipal = ALICE,
) -> AclBinding:
    """It is allowed; on a topic, unless another kind is named."""
    return AclBinding(
        kind, name, PatternType.LITERAL, str(principal), "*", operation, AclPermissionType.ALLOW
    )


def judging(*rules: AclBinding) -> StandardAuthorizer:
    """Allows what these rules say."""
    made = StandardAuthorizer()
    made.apply([(Uuid(number.to_bytes(16, "big")), each) for number, each in enumerate(rules)])
    return made
