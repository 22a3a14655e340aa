"""Headers: which version of them goes with what, and Kafka's exceptions."""

import io

import pytest
from kio.schema.request_header.v1.header import RequestHeader as KioRequestHeaderV1
from kio.schema.request_header.v2.header import RequestHeader as KioRequestHeaderV2
from kio.serial import entity_writer
from kio.static.primitive import i16, i32

from ottla.wire.codec import WireError
from ottla.wire.framing import (
    RequestHeader,
    decode_request_header,
    decode_response_header,
    encode_request_header,
    encode_response_header,
    request_header_version,
    response_header_version,
)
from ottla.wire.registry import APIS


def written(api_key: int, version: int, correlation_id: int, client_id: str | None) -> bytes:
    out = bytearray()
    encode_request_header(out, api_key, version, correlation_id, client_id)
    return bytes(out)


@pytest.mark.parametrize("client_id", [None, "", "me", "ü" * 100])
def test_request_headers_are_those_of_kio(client_id: str | None) -> None:
    for cls, version in ((KioRequestHeaderV1, 3), (KioRequestHeaderV2, 4)):
        theirs = io.BytesIO()
        header = cls(
            request_api_key=i16(12),
            request_api_version=i16(version),
            correlation_id=i32(77),
            client_id=client_id,
        )
        entity_writer(cls)(theirs, header)
        ours = written(12, version, 77, client_id)
        assert ours == theirs.getvalue()
        assert decode_request_header(ours, 0, len(ours)) == (
            RequestHeader(12, version, 77, client_id),
            len(ours),
        )


def test_a_header_within_a_buffer() -> None:
    raw = b"??" + written(12, 4, 77, "me") + b"body"
    header, body = decode_request_header(memoryview(raw), 2, len(raw))
    assert header.client_id == "me"
    assert raw[body:] == b"body"


def test_tags_in_a_header_are_skipped() -> None:
    raw = written(12, 4, 77, "me")[:-1] + b"\x01\x05\x02ab"
    assert decode_request_header(raw, 0, len(raw))[1] == len(raw)


def test_an_api_versions_request_from_the_future_can_be_read() -> None:
    raw = written(18, 9, 1, "new")
    assert decode_request_header(raw + b"whatever", 0, len(raw) + 8) == (
        RequestHeader(18, 9, 1, "new"),
        len(raw),
    )


def test_api_versions_responses_have_the_oldest_header() -> None:
    assert [response_header_version(18, version) for version in range(6)] == [0] * 6
    assert [request_header_version(18, version) for version in range(6)] == [1, 1, 1, 2, 2, 2]


def test_the_first_controlled_shutdown_has_no_client_id() -> None:
    raw = written(7, 0, 5, "ignored")
    assert raw == b"\x00\x07\x00\x00\x00\x00\x00\x05"
    assert decode_request_header(raw, 0, len(raw)) == (RequestHeader(7, 0, 5, None), 8)
    assert decode_request_header(raw + b"body", 0, 12) == (RequestHeader(7, 0, 5, None), 8)
    assert request_header_version(7, 1) == 1


@pytest.mark.parametrize("api_key", sorted(APIS))
def test_responses_come_back(api_key: int) -> None:
    for version in (0, APIS[api_key].flexible_from or 0):
        out = bytearray(b"?")
        encode_response_header(out, api_key, version, 123)
        assert decode_response_header(out, 1, api_key, version) == (123, len(out))


def test_tags_in_a_response_header_are_skipped() -> None:
    assert decode_response_header(b"\x00\x00\x00\x05\x01\x00\x01x", 0, 12, 4) == (5, 8)


@pytest.mark.parametrize("version", [3, 4])
def test_a_header_cut_short_is_refused(version: int) -> None:
    raw = written(12, version, 77, "me")
    for cut in range(len(raw)):
        with pytest.raises(WireError):
            decode_request_header(raw[:cut], 0, cut)
        with pytest.raises(WireError):
            decode_request_header(raw + b"next frame", 0, cut)
    with pytest.raises(WireError):
        decode_response_header(b"\x00\x00\x00\x05", 0, 12, 4)


def test_an_unknown_api_is_refused() -> None:
    with pytest.raises(WireError, match="no API with the key 1000"):
        decode_request_header(b"\x03\xe8\x00\x00\x00\x00\x00\x01\xff\xff", 0, 10)
