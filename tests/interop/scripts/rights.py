"""Who asks the judged questions: one user for every right, for every right that is missing, and for what an API wants.

Made from the table of server/authorization.py, so that an API that is new there has its users by itself. All rules are
there from the beginning: nothing changes between two questions, and nobody waits for a rule to arrive.

Resources have one of four names. `seen` and `ghost` are what rules are about, `hidden` and `void` are not; there are
resources called `seen` and `hidden`, and none called `ghost` and `void`. Delegation tokens have no names: rules are
about all of them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from ottla.security.acls import CLUSTER_NAME, SUPPORTED_OPERATIONS, AclOperation, ResourceType
from ottla.server.authorization import ACCESS, CONTROLLER_ACCESS, Access, Asked

SEEN, HIDDEN, GHOST, VOID = WORDS = ("seen", "hidden", "ghost", "void")
# Groups of other kinds than the classic one, and a group that reads what its user may see and what not.
KINDS = ("consumer", "share", "streams")
BOTH = "both"
LITERAL, ALLOW, DENY, ALL = 3, 3, 2, 2
TYPES = tuple(SUPPORTED_OPERATIONS)
GROUPS = tuple(f"{word}-{kind}" for word in (SEEN, BOTH, GHOST) for kind in KINDS)
DOOMED = "doomed"


class User(NamedTuple):
    """Somebody, and the rules that are about them."""

    name: str
    rules: tuple[dict[str, Any], ...] = ()


def own_topic(user: str) -> str:
    """The name of a topic that this user alone makes, if they may."""
    return f"own-{user}"


def auto_topic(user: str) -> str:
    """The same, of one that is made because they ask for it."""
    return f"auto-{user}"


def named(user: str, kind: ResourceType) -> tuple[str, ...]:
    """The resources that a user's rules are about."""
    if kind is ResourceType.CLUSTER:
        return (CLUSTER_NAME,)
    if kind is ResourceType.USER:
        # By the whole principal.
        return (f"User:{SEEN}", f"User:{GHOST}")
    if kind is ResourceType.DELEGATION_TOKEN:
        # Their ids are the nodes' to choose.
        return ("*",)
    more = {
        ResourceType.TOPIC: (DOOMED, own_topic(user), auto_topic(user)),
        ResourceType.GROUP: GROUPS,
    }
    return (SEEN, GHOST, *more.get(kind, ()))


def rule(user: str, asked: Asked, name: str, permission: int = ALLOW) -> dict[str, Any]:
    """One rule, as CreateAcls has it."""
    operation, kind = asked
    return {
        "resource_type": int(kind),
        "resource_name": name,
        "resource_pattern_type": LITERAL,
        "principal": f"User:{user}",
        "host": "*",
        "operation": int(operation),
        "permission_type": permission,
    }


def title(asked: Asked) -> str:
    operation, kind = asked
    return f"{operation.name}-{kind.name}"


def who_may(name: str, rights: Iterable[Asked]) -> User:
    """Only these rights."""
    return User(name, tuple(rule(name, asked, each) for asked in rights for each in named(name, asked[1])))


def who_may_not(name: str, rights: Iterable[Asked]) -> User:
    """Everything, on whatever there is, but these."""
    everything = (
        rule(name, (AclOperation.ALL, kind), "*") for kind in TYPES if kind is not ResourceType.CLUSTER
    )
    cluster = rule(name, (AclOperation.ALL, ResourceType.CLUSTER), CLUSTER_NAME)
    denied = (rule(name, asked, each, DENY) for asked in rights for each in named(name, asked[1]))
    return User(name, (*everything, cluster, *denied))


def asked_by(access: Access) -> tuple[Asked, ...]:
    """All that an API may ask for."""
    cluster = tuple((operation, ResourceType.CLUSTER) for operation in access.cluster)
    return tuple(dict.fromkeys((*cluster, *access.by_handler)))


def accesses(api: str) -> tuple[Access, ...]:
    """On either listener."""
    return tuple(table[api] for table in (ACCESS, CONTROLLER_ACCESS) if api in table)


NOBODY = User("nothing")
EVERYTHING = who_may_not("everything", ())


def single(asked: Asked) -> User:
    return who_may(f"only-{title(asked)}", [asked])


def missing(asked: Asked) -> User:
    return who_may_not(f"not-{title(asked)}", [asked])


def of_api(api: str) -> list[User]:
    """Those whose rights matter to an API: nobody's, each alone, all that it asks for, all but one, and everything."""
    rights = tuple(dict.fromkeys(asked for access in accesses(api) for asked in asked_by(access)))
    together = [who_may(f"all-of-{api}", rights)] if len(rights) > 1 else []
    return [NOBODY, *map(single, rights), *together, *map(missing, rights), EVERYTHING]


def each_right() -> list[Asked]:
    """Every operation on every kind of resource that there is a reason to ask for."""
    supported = [
        (operation, kind) for kind, operations in SUPPORTED_OPERATIONS.items() for operation in operations
    ]
    asked = [right for api in ACCESS for access in accesses(api) for right in asked_by(access)]
    return list(dict.fromkeys([*supported, *asked]))


def everybody() -> list[User]:
    """All users, once each."""
    users = [NOBODY, EVERYTHING, *map(single, each_right()), *map(missing, each_right())]
    users += [user for api in ACCESS for user in of_api(api)]
    return list({user.name: user for user in users}.values())
