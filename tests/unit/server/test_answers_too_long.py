"""An answer with something in it that is longer than the protocol's strings is an error, and the connection stays."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.judged_broker import JudgedBroker

from ottla.model.errors import ErrorCode
from ottla.wire.messages.groups.classic import (
    DescribeGroupsRequest,
    JoinGroupRequest,
    JoinGroupRequestProtocol,
)
from ottla.wire.messages.security.scram import DescribeUserScramCredentialsRequest, UserName

# Fits, and does not any more with what Kafka makes of it: a member's id, or a sentence.
LONG = "x" * 32760


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JudgedBroker]:
    path: Path = tmp_path_factory.mktemp("long")
    with JudgedBroker(path, {}, {"group.initial.rebalance.delay.ms": 0}) as judged:
        judged.ready("g")
        yield judged


def joining(instance_id: str) -> JoinGroupRequest:
    return JoinGroupRequest(
        group_id="g",
        session_timeout_ms=6_000,
        rebalance_timeout_ms=6_000,
        member_id="",
        group_instance_id=instance_id,
        protocol_type="consumer",
        protocols=[JoinGroupRequestProtocol(name="range", metadata=b"")],
    )


def test_a_member_whose_id_is_too_long_and_whoever_looks_at_its_group(broker: JudgedBroker) -> None:
    for version in (5, 9):  # both kinds of strings
        assert broker.ask(joining(LONG), version).error_code == ErrorCode.UNKNOWN_SERVER_ERROR
    for version in (4, 5):
        answer = broker.ask(DescribeGroupsRequest(groups=["g", "h"]), version)
        failed = ErrorCode.UNKNOWN_SERVER_ERROR
        assert [(group.group_id, group.error_code) for group in answer.groups] == [
            ("g", failed),
            ("h", failed),
        ]


def test_a_user_whose_name_leaves_no_room_for_a_sentence(broker: JudgedBroker) -> None:
    answer: Any = broker.ask(DescribeUserScramCredentialsRequest(users=[UserName(name=LONG)]), 0)
    assert answer.error_code == ErrorCode.UNKNOWN_SERVER_ERROR
