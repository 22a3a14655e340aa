"""Whole frames, and a stream cut into them."""

import pytest

from ottla.wire.codec import WireError, decode
from ottla.wire.framing import (
    FrameReader,
    decode_request_header,
    decode_response_header,
    encode_request,
    encode_response,
    frame_size,
)
from ottla.wire.messages.groups.classic import HeartbeatRequest, HeartbeatResponse

REQUEST = HeartbeatRequest(group_id="g", generation_id=1, member_id="m")


def test_a_request_is_size_header_body() -> None:
    frame = encode_request(REQUEST, 4, 9, "me")
    assert frame_size(frame, 0, 1000) == len(frame) - 4
    header, body = decode_request_header(frame, 4, len(frame))
    assert (header.api_key, header.api_version, header.correlation_id) == (12, 4, 9)
    assert decode(HeartbeatRequest, frame, 4, body) == (REQUEST, len(frame))


def test_a_response_is_size_header_body() -> None:
    frame = encode_response(HeartbeatResponse(error_code=27), 4, 9)
    assert frame == b"\x00\x00\x00\x0c\x00\x00\x00\x09\x00\x00\x00\x00\x00\x00\x1b\x00"
    correlation_id, body = decode_response_header(frame, 4, 12, 4)
    assert correlation_id == 9
    assert decode(HeartbeatResponse, frame, 4, body)[0].error_code == 27


@pytest.mark.parametrize("size", [b"\xff\xff\xff\xff", b"\x80\x00\x00\x00", b"\x00\x00\x03\xe9"])
def test_sizes_below_zero_or_over_the_limit_are_refused(size: bytes) -> None:
    with pytest.raises(WireError):
        frame_size(size, 0, 1000)
    with pytest.raises(WireError):
        FrameReader(1000).feed(size)


def test_a_stream_in_any_pieces_gives_the_same_frames() -> None:
    frames = [b"one", b"", b"three" * 50]
    stream = b"".join(len(frame).to_bytes(4, "big") + frame for frame in frames)
    for step in (1, 3, 7, len(stream)):
        reader = FrameReader(1000)
        found = []
        for start in range(0, len(stream), step):
            found += reader.feed(stream[start : start + step])
        assert found == frames
