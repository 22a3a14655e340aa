"""The nodes under measurement, their users, and rules and quotas by the thousand."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from tests.interop.process import ServerProcess, wait_until
from tests.interop.scripts import acls
from tests.interop.secured import SecureCluster, SecureNode, Security

from bench.clusters import AS_SHIPPED
from bench.servers import QUIET, SERVER_JVM

USER = "bench"
CREATE_ACLS, DESCRIBE_ACLS, ALTER_QUOTAS, DESCRIBE_QUOTAS = 30, 29, 49, 48
LITERAL, PREFIXED, READ, WRITE, CREATE = 3, 4, 3, 4, 5
# So many rules or quotas are made by one request: Apache's controller takes ten thousand records at once.
AT_ONCE = 1_000
PATIENCE_S = 120.0
# A thousand clients that come at once are not to wait for their SYN to be sent again.
SETTINGS: dict[str, object] = {**QUIET, **AS_SHIPPED, "socket.listen.backlog.size": 2_000}


def node(
    kind: str, where: Path, protocol: str, settings: Mapping[str, object] | None = None, name: str = ""
) -> SecureCluster:
    """A cluster of one node, not started yet."""
    place = where / (name or kind)
    security = Security(place, {USER: "bench-secret"}, protocol)
    nodes = {1: (kind, "broker,controller")}
    return SecureCluster(place, nodes, security, {**SETTINGS, **(settings or {})}, jvm=SERVER_JVM)


@contextlib.contextmanager
def both(
    where: Path, protocol: str, settings: Mapping[str, object] | None = None
) -> Iterator[dict[str, ServerProcess]]:
    """A node of each kind."""
    with (
        node("apache", where, protocol, settings) as apache,
        node("ottla", where, protocol, settings) as ottla,
    ):
        yield {"apache": apache[1], "ottla": ottla[1]}


# ---- rules and quotas


def rule(user: str, topic: str, operation: int, pattern: int = LITERAL) -> dict[str, Any]:
    return acls.creation(topic, principal=f"User:{user}", operation=operation, resource_pattern_type=pattern)


def many_rules(count: int, topics: Iterable[str]) -> list[dict[str, Any]]:
    """What a large company has: a few rules for each of many applications and their topics, by name and by prefix.

    The measured user's are among them.
    """
    own = [rule(USER, topic, operation) for topic in topics for operation in (READ, WRITE)]
    others = []
    for number in range(count - len(own)):
        pattern = PREFIXED if number % 10 == 0 else LITERAL
        others.append(
            rule(f"app-{number // 4}", f"app-{number // 4}-topic-{number}", READ + number % 2, pattern)
        )
    middle = len(others) // 2
    return [*others[:middle], *own, *others[middle:]]


def create_rules(server: SecureNode, rows: list[dict[str, Any]]) -> None:
    """Returns when the broker has them."""
    with server.client() as admin:
        for start in range(0, len(rows), AT_ONCE):
            answer = admin.ask(CREATE_ACLS, 3, {"creations": rows[start : start + AT_ONCE]})
            errors = {row["error_code"] for row in answer["results"]} - {"none"}
            assert not errors, f"rules are not created: {errors}"
        last = acls.matching(rows[-1]["resource_name"], principal_filter=rows[-1]["principal"])
        wait_until(lambda: admin.ask(DESCRIBE_ACLS, 3, last)["resources"], PATIENCE_S, "the rules to arrive")


def create_quotas(server: SecureNode, limits: Mapping[str, Mapping[str, float]]) -> None:
    """Of users; returns when the broker shows the last."""
    entries = [
        {
            "entity": [{"entity_type": "user", "entity_name": user}],
            "ops": [{"key": key, "value": value, "remove": False} for key, value in keys.items()],
        }
        for user, keys in limits.items()
    ]
    last = {"entity_type": "user", "match_type": 0, "match": list(limits)[-1]}
    with server.client() as admin:
        for start in range(0, len(entries), AT_ONCE):
            body = {"entries": entries[start : start + AT_ONCE], "validate_only": False}
            errors = {row["error_code"] for row in admin.ask(ALTER_QUOTAS, 1, body)["entries"]} - {"none"}
            assert not errors, f"quotas are not created: {errors}"
        wait_until(
            lambda: admin.ask(DESCRIBE_QUOTAS, 1, {"components": [last], "strict": True})["entries"],
            PATIENCE_S,
            "the quotas to arrive",
        )
