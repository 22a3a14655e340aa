"""Who sent a forwarded request, as a broker writes it into an envelope."""

import pytest

from ottla.model.errors import ErrorCode, KafkaError
from ottla.server.forwarding import FORWARDABLE
from ottla.server.principal import read_principal
from ottla.wire.codec import encode
from ottla.wire.messages.nodes.envelope import DefaultPrincipalData
from ottla.wire.registry import APIS

PRINCIPAL = DefaultPrincipalData(type="User", name="alice", token_authenticated=True)


def test_a_principal_has_its_version_before_it() -> None:
    assert read_principal(b"\x00\x00" + encode(PRINCIPAL, 0)) == PRINCIPAL


@pytest.mark.parametrize(
    "data", [None, b"", b"\x00", b"\x00\x01" + encode(PRINCIPAL, 0), b"\xff\xff", b"\x00\x00\x05Us"]
)
def test_what_is_no_principal(data: bytes | None) -> None:
    with pytest.raises(KafkaError) as refused:
        read_principal(data)
    assert refused.value.code is ErrorCode.PRINCIPAL_DESERIALIZATION_FAILURE


def test_an_envelope_is_not_put_into_another() -> None:
    assert 58 not in FORWARDABLE
    assert set(APIS) >= FORWARDABLE
