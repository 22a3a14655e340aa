"""Whole frames."""

from ottla.wire.codec import decode
from ottla.wire.framing import (
    decode_request_header,
    decode_response_header,
    encode_request,
    encode_response,
)
from ottla.wire.messages.groups.classic import HeartbeatRequest, HeartbeatResponse

REQUEST = HeartbeatRequest(group_id="g", generation_id=1, member_id="m")


def test_a_request_is_size_header_body() -> None:
    frame = encode_request(REQUEST, 4, 9, "me")
    assert frame[:4] == (len(frame) - 4).to_bytes(4, "big")
    header, body = decode_request_header(frame, 4, len(frame))
    assert (header.api_key, header.api_version, header.correlation_id) == (12, 4, 9)
    assert decode(HeartbeatRequest, frame, 4, body) == (REQUEST, len(frame))


def test_a_response_is_size_header_body() -> None:
    frame = encode_response(HeartbeatResponse(error_code=27), 4, 9)
    assert frame == b"\x00\x00\x00\x0c\x00\x00\x00\x09\x00\x00\x00\x00\x00\x00\x1b\x00"
    correlation_id, body = decode_response_header(frame, 4, 12, 4)
    assert correlation_id == 9
    assert decode(HeartbeatResponse, frame, 4, body)[0].error_code == 27
