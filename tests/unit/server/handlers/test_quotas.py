"""Which quotas a broker describes: by name, by default, by type, strictly or not."""

import asyncio
from typing import Any

import pytest
from tests.support.controller_node import ControllerNode
from tests.unit.server.handlers.test_users import context, run

from ottla.metadata import records as r
from ottla.metadata.delta import ImageBuilder
from ottla.metadata.image import EMPTY_IMAGE
from ottla.model.errors import ErrorCode
from ottla.server.errors import error_response
from ottla.server.handlers import quotas
from ottla.wire.codec import encode
from ottla.wire.messages.admin import quotas as m

EXACT, DEFAULT, SPECIFIED = range(3)
ENTITIES: dict[str, dict[str, str | None]] = {
    "u": {"user": "alice"},
    "ud": {"user": None},
    "uc": {"user": "alice", "client-id": "c"},
    "udc": {"user": None, "client-id": "c"},
    "ucd": {"user": "alice", "client-id": None},
    "c": {"client-id": "c"},
    "cd": {"client-id": None},
    "i": {"ip": "10.0.0.1"},
    "id": {"ip": None},
}


def image() -> Any:
    builder = ImageBuilder(EMPTY_IMAGE)
    for name, entity in ENTITIES.items():
        parts = [r.EntityData(entity_type=kind, entity_name=each) for kind, each in entity.items()]
        builder.apply(r.ClientQuotaRecord(entity=parts, key=name, value=1.5, remove=False))
    return builder.build(1, 1, 1)[0]


def describe(*parts: tuple[str, int, str | None], strict: bool = False) -> set[str] | ErrorCode:
    """The keys of what is found, which name it."""
    found: list[Any] = []

    async def work(node: ControllerNode) -> None:
        node.image = image()
        request = m.DescribeClientQuotasRequest(
            components=[m.ComponentData(entity_type=t, match_type=k, match=n) for t, k, n in parts],
            strict=strict,
        )
        answer = await quotas.describe_client_quotas(context(node, "PLAINTEXT"), request)
        for version in (0, 1):
            encode(answer, version)
        found.append(answer)

    run(work)
    (answer,) = found
    if answer.error_code:
        assert answer.entries is None
        assert answer.error_message
        return ErrorCode(answer.error_code)
    for entry in answer.entries:
        (value,) = entry.values
        assert value.value == 1.5
        assert {part.entity_type: part.entity_name for part in entry.entity} == ENTITIES[value.key]
    return {entry.values[0].key for entry in answer.entries}


@pytest.mark.parametrize(
    ("parts", "strict", "found"),
    [
        ((), False, set(ENTITIES)),
        ((), True, set()),
        ((("user", EXACT, "alice"),), False, {"u", "uc", "ucd"}),
        ((("user", EXACT, "alice"),), True, {"u"}),
        ((("user", DEFAULT, None),), False, {"ud", "udc"}),
        ((("user", SPECIFIED, None),), False, {"u", "ud", "uc", "udc", "ucd"}),
        ((("user", SPECIFIED, None),), True, {"u", "ud"}),
        ((("user", SPECIFIED, None), ("client-id", EXACT, "c")), False, {"uc", "udc"}),
        ((("user", EXACT, "alice"), ("client-id", SPECIFIED, None)), True, {"uc", "ucd"}),
        ((("client-id", DEFAULT, None),), True, {"cd"}),
        ((("ip", EXACT, "10.0.0.1"),), False, {"i"}),
        ((("ip", SPECIFIED, None),), True, {"i", "id"}),
        ((("user", EXACT, "nobody"),), False, set()),
        ((("user", EXACT, ""),), False, set()),
    ],
)
def test_what_is_found(parts: tuple[tuple[str, int, str | None], ...], strict: bool, found: set[str]) -> None:
    assert describe(*parts, strict=strict) == found


@pytest.mark.parametrize(
    ("parts", "code"),
    [
        ((("", EXACT, "x"),), ErrorCode.INVALID_REQUEST),
        ((("group", EXACT, "x"),), ErrorCode.UNSUPPORTED_VERSION),
        ((("user", EXACT, None),), ErrorCode.INVALID_REQUEST),
        ((("user", DEFAULT, "x"),), ErrorCode.INVALID_REQUEST),
        ((("user", SPECIFIED, "x"),), ErrorCode.INVALID_REQUEST),
        ((("user", 3, None),), ErrorCode.INVALID_REQUEST),
        ((("user", -1, "x"),), ErrorCode.INVALID_REQUEST),
        ((("user", EXACT, "x"), ("user", DEFAULT, None)), ErrorCode.INVALID_REQUEST),
        ((("ip", EXACT, "x"), ("user", DEFAULT, None)), ErrorCode.INVALID_REQUEST),
        ((("client-id", EXACT, "x"), ("ip", SPECIFIED, None)), ErrorCode.INVALID_REQUEST),
    ],
)
def test_what_cannot_be_asked(parts: tuple[tuple[str, int, str | None], ...], code: ErrorCode) -> None:
    assert describe(*parts) is code


def test_who_may_not_ask_is_given_no_list() -> None:
    request = m.DescribeClientQuotasRequest(components=[], strict=False)
    answer = error_response(request, 1, ErrorCode.CLUSTER_AUTHORIZATION_FAILED, "DESCRIBE_CONFIGS is needed")
    assert answer.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    assert (answer.entries, answer.error_message) == (None, None)


def test_a_change_is_the_controllers() -> None:
    async def work(node: ControllerNode) -> None:
        request = m.AlterClientQuotasRequest(entries=[], validate_only=True)
        await asyncio.wait_for(quotas.alter_client_quotas(context(node, "PLAINTEXT"), request), 10)
        ((name, asked, _),) = node.controller.asked
        assert (name, asked) == ("alter_client_quotas", request)

    run(work)
