"""What kio does not know, and what it cannot tell: our own round trips, in every version."""

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.property.wire.kio_oracle import oracle_class
from tests.property.wire.strategies import messages
from tests.support.messages import every_message

from ottla.wire.codec import WireError, decode, encode
from ottla.wire.schema import schema_of

FEW = settings(max_examples=10, deadline=None, database=None, suppress_health_check=list(HealthCheck))


def every_version() -> list[tuple[type[Any], int]]:
    return [(cls, version) for cls in every_message() for version in schema_of(cls).versions]


def unknown_to_kio() -> list[Any]:
    return [
        pytest.param(cls, version, id=f"{cls.__name__}-v{version}")
        for cls, version in every_version()
        if oracle_class(cls, version) is None
    ]


@pytest.mark.parametrize(("cls", "version"), unknown_to_kio())
@FEW
@given(data=st.data())
def test_what_is_written_is_read(cls: type[Any], version: int, data: st.DataObject) -> None:
    message = data.draw(messages(cls, version))
    encoded = encode(message, version)
    for buffer in (encoded, bytearray(encoded), memoryview(b"!" + encoded)[1:]):
        decoded, end = decode(cls, buffer, version)
        assert decoded == message
        assert end == len(encoded)
    assert encode(decoded, version) == encoded


def test_defaults_make_a_message_in_every_version() -> None:
    for cls, version in every_version():
        message = cls()
        encoded = encode(message, version)
        assert decode(cls, b"??" + encoded + b"!!", version, offset=2) == (message, 2 + len(encoded))


@FEW
@given(case=st.sampled_from(every_version()), data=st.data())
def test_a_message_cut_short_is_refused(case: tuple[type[Any], int], data: st.DataObject) -> None:
    cls, version = case
    encoded = encode(data.draw(messages(cls, version)), version)
    for cut in range(len(encoded)):
        with pytest.raises(WireError):
            decode(cls, encoded[:cut], version)
        with pytest.raises(WireError):
            decode(cls, encoded, version, end=cut)
