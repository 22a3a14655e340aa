"""Scripts: access rules described, created and deleted, where there is no authorizer."""

from __future__ import annotations

from typing import Any

from tests.interop.scripts.script import Script

TOPIC, CLUSTER, LITERAL, PREFIXED, READ, ALLOW, ANY, MATCH = 2, 4, 3, 4, 3, 3, 1, 2
# Kinds that nobody knows: the number 0 stands for them, and others are of the future.
UNKNOWN, FUTURE = 0, 99
FILTER_KINDS = ("resource_type_filter", "pattern_type_filter", "operation", "permission_type")
CREATION_KINDS = ("resource_type", "resource_pattern_type", "operation", "permission_type")


def creation(name: str = "orders", **more: Any) -> dict[str, Any]:
    """One rule of a CreateAcls request."""
    fields = {
        "resource_type": TOPIC,
        "resource_pattern_type": LITERAL,
        "principal": "User:alice",
        "host": "*",
        "operation": READ,
        "permission_type": ALLOW,
    }
    return {"resource_name": name, **fields, **more}


def matching(name: str | None = None, **more: Any) -> dict[str, Any]:
    """A filter, as DescribeAcls has one and DeleteAcls many."""
    fields = {
        "resource_type_filter": ANY,
        "pattern_type_filter": ANY,
        "principal_filter": None,
        "host_filter": None,
        "operation": ANY,
        "permission_type": ANY,
    }
    return {"resource_name_filter": name, **fields, **more}


def acls(s: Script) -> None:
    """All three on a broker's listener, in every version, the good and the bad."""
    for v in s.versions(29):
        s.ask(29, v, matching(), "all")
        s.ask(29, v, matching("orders", pattern_type_filter=MATCH), "what counts for a topic")
        for field in FILTER_KINDS:
            s.ask(29, v, matching(**{field: FUTURE}), f"{field} of the future")
            s.ask(29, v, matching(**{field: UNKNOWN}), f"{field} unknown")
    for v in s.versions(30):
        s.ask(30, v, {"creations": []}, "none")
        s.ask(30, v, {"creations": [creation()]}, "one")
        rows = [
            creation(),
            creation("ord", resource_pattern_type=PREFIXED),
            creation(""),
            creation(resource_type=CLUSTER),
            creation(principal="alice"),
            creation(operation=FUTURE),
        ]
        s.ask(30, v, {"creations": rows}, "good and bad")
        for field in CREATION_KINDS:
            s.ask(30, v, {"creations": [creation(**{field: UNKNOWN})]}, f"{field} unknown")
    for v in s.versions(31):
        s.ask(31, v, {"filters": []}, "none")
        s.ask(31, v, {"filters": [matching()]}, "all")
        rows = [matching("orders", pattern_type_filter=MATCH), matching(operation=FUTURE)]
        s.ask(31, v, {"filters": rows}, "good and bad")
        for field in FILTER_KINDS:
            s.ask(31, v, {"filters": [matching(**{field: UNKNOWN})]}, f"{field} unknown")
