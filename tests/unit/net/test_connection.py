"""One connection: negotiation, order, refusals, the hook for authentication."""

from typing import Any

import pytest

from ottla.client.errors import ConnectionLost, ProtocolError, UnsupportedVersion, WrongAddress
from ottla.model.errors import ErrorCode, KafkaError
from ottla.net.connection import FIRST_CORRELATION_ID as FIRST
from ottla.net.connection import ApiRanges, Connection, State
from ottla.wire.framing import decode_request_header, encode_response
from ottla.wire.messages.api_versions import ApiVersion, ApiVersionsRequest, ApiVersionsResponse
from ottla.wire.messages.metadata import MetadataRequest, MetadataResponse
from ottla.wire.messages.nodes.raft import VoteRequest
from ottla.wire.messages.security.sasl import SaslHandshakeRequest, SaslHandshakeResponse

RANGES = ApiVersionsResponse(
    api_keys=[
        ApiVersion(api_key=3, min_version=0, max_version=12),
        ApiVersion(api_key=18, min_version=0, max_version=3),
    ]
)


def make(authenticator: Any = None) -> Connection:
    connection = Connection(
        "me",
        max_response_bytes=10_000,
        request_timeout_ms=1000,
        software_version="1",
        authenticator=authenticator,
    )
    connection.connected(0.0)
    return connection


def sent(connection: Connection) -> list[tuple[int, int, int]]:
    """(api key, version, correlation id) of what goes out."""
    out = []
    for frame in connection.take_output():
        header, _ = decode_request_header(frame, 4, len(frame))
        assert header.client_id == "me"
        out.append((header.api_key, header.api_version, header.correlation_id))
    return out


def ready() -> Connection:
    connection = make()
    sent(connection)
    connection.receive(encode_response(RANGES, 4, FIRST), 1.0)
    assert connection.state is State.READY
    return connection


def test_the_first_word_is_api_versions() -> None:
    connection = make()
    assert sent(connection) == [(18, 4, FIRST)]
    assert connection.state is State.NEGOTIATING
    connection.receive(encode_response(RANGES, 4, FIRST), 1.0)
    assert connection.state is State.READY
    assert connection.ranges.version_for(MetadataRequest) == 12


def test_a_refusal_in_version_0_leads_to_the_version_the_broker_names() -> None:
    connection = make()
    sent(connection)
    refusal = ApiVersionsResponse(error_code=ErrorCode.UNSUPPORTED_VERSION, api_keys=RANGES.api_keys)
    connection.receive(encode_response(refusal, 0, FIRST), 1.0)
    assert sent(connection) == [(18, 3, FIRST)]
    connection.receive(encode_response(RANGES, 3, FIRST), 2.0)
    assert connection.state is State.READY


def test_a_refusal_without_ranges_leads_to_version_0() -> None:
    connection = make()
    sent(connection)
    refusal = ApiVersionsResponse(error_code=ErrorCode.UNSUPPORTED_VERSION, api_keys=[])
    connection.receive(encode_response(refusal, 0, FIRST), 1.0)
    assert sent(connection) == [(18, 0, FIRST)]


def test_responses_go_to_their_requests_in_order() -> None:
    connection, got = ready(), []
    for name in ("a", "b"):
        connection.send(
            MetadataRequest(topics=[]),
            12,
            lambda r, e, now, name=name: got.append((name, r.cluster_id)),
            1.0,
            500,
        )
    assert [correlation for _, _, correlation in sent(connection)] == [1, 2]
    answers = [
        encode_response(MetadataResponse(brokers=[], topics=[], cluster_id=f"c{i}"), 12, i) for i in (1, 2)
    ]
    connection.receive(b"".join(answers), 2.0)
    assert got == [("a", "c1"), ("b", "c2")]


def test_an_answer_out_of_turn_ends_the_connection() -> None:
    connection, got = ready(), []
    connection.send(MetadataRequest(topics=[]), 12, lambda r, e, now: got.append(e), 1.0, 500)
    with pytest.raises(ProtocolError, match="correlation id 9 instead of 1"):
        connection.receive(encode_response(MetadataResponse(brokers=[], topics=[]), 12, 9), 2.0)
    assert isinstance(got[0], ProtocolError)


def test_a_half_answer_is_an_error_and_not_a_crash() -> None:
    connection = ready()
    connection.send(MetadataRequest(topics=[]), 12, lambda r, e, now: None, 1.0, 500)
    whole = encode_response(MetadataResponse(brokers=[], topics=[], cluster_id="cluster"), 12, 1)
    cut = whole[4:-9]
    with pytest.raises(ProtocolError, match="Metadata"):
        connection.receive(len(cut).to_bytes(4, "big") + cut, 2.0)


def test_an_answer_to_nothing_is_refused() -> None:
    with pytest.raises(ProtocolError, match="nobody asked"):
        ready().receive(encode_response(RANGES, 3, 5), 1.0)


def test_closing_fails_what_is_in_flight() -> None:
    connection, got = ready(), []
    connection.send(MetadataRequest(topics=[]), 12, lambda r, e, now: got.append((r, e)), 1.0, 500)
    assert connection.deadline_ms() == 501.0
    error = ConnectionLost("gone")
    connection.close(error, 2.0)
    assert got == [(None, error)]
    assert connection.deadline_ms() == float("inf")


def test_throttling_is_noted() -> None:
    connection = ready()
    connection.send(MetadataRequest(topics=[]), 12, lambda r, e, now: None, 1.0, 500)
    response = MetadataResponse(brokers=[], topics=[], throttle_time_ms=300)
    connection.receive(encode_response(response, 12, 1), 10.0)
    assert connection.throttled_until_ms == 310.0


def test_versions_without_overlap_are_refused() -> None:
    ranges = ApiRanges({3: (20, 30)})
    with pytest.raises(UnsupportedVersion, match="20 to 30"):
        ranges.version_for(MetadataRequest)
    with pytest.raises(UnsupportedVersion, match="does not serve"):
        ranges.version_for(ApiVersionsRequest)
    assert ApiRanges({3: (0, 99)}).version_for(MetadataRequest, at_most=5) == 5


def hear(connection: Connection, said: bytes, into_buffers: bool) -> None:
    """Give it bytes as one or the other kind of driver does."""
    if into_buffers:
        connection.buffer()[: len(said)] = said
        connection.filled(len(said), 1.0)
    else:
        connection.receive(said, 1.0)


@pytest.mark.parametrize(
    ("said", "told"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "it answers in HTTP"),
        (b"<!DOCTYPE HTML>", "it answers in HTML"),
        (b"SSH-2.0-OpenSSH_9.2\r\n", "it answers in SSH"),
        (b"\x15\x03\x03\x00\x02\x02\x28", "it answers in TLS"),
        (b"-ERR unknown command\r\n", "a frame of 759517778 bytes was announced"),
        (b"\x00\x00\x00\x04none", "correlation id"),
    ],
)
@pytest.mark.parametrize("into_buffers", [False, True])
def test_what_is_not_kafka_is_known_by_its_first_words(said: bytes, told: str, into_buffers: bool) -> None:
    connection = Connection("me", max_response_bytes=1 << 30, request_timeout_ms=1000, software_version="1")
    connection.connected(0.0)
    # A line has ended, so that who reads lines answers.
    assert b"\r\n\r\n" in connection.take_output()[0]
    with pytest.raises(WrongAddress, match=f"this is not Kafka: .*{told}"):
        hear(connection, said, into_buffers)


@pytest.mark.parametrize("into_buffers", [False, True])
def test_a_large_answer_is_taken_once_the_broker_is_known(into_buffers: bool) -> None:
    connection = Connection("me", max_response_bytes=1 << 30, request_timeout_ms=1000, software_version="1")
    connection.connected(0.0)
    hear(connection, bytes(encode_response(RANGES, 4, FIRST)), into_buffers)
    hear(connection, ((1 << 20) + 1).to_bytes(4, "big"), into_buffers)
    with pytest.raises(ProtocolError, match="a frame of"):
        hear(ready(), (20_000).to_bytes(4, "big"), into_buffers)


def test_a_controller_is_told_from_a_broker() -> None:
    connection = make()
    votes = ApiVersionsResponse(
        api_keys=[ApiVersion(api_key=key, min_version=0, max_version=2) for key in (18, 52, 60)]
    )
    with pytest.raises(WrongAddress, match="this is the port of a controller"):
        connection.receive(encode_response(votes, 4, FIRST), 1.0)


def test_who_wants_a_controller_takes_one_that_serves_no_metadata() -> None:
    connection = Connection(
        "me", max_response_bytes=10_000, request_timeout_ms=1000, software_version="1", required=VoteRequest
    )
    connection.connected(0.0)
    votes = ApiVersionsResponse(
        api_keys=[ApiVersion(api_key=key, min_version=0, max_version=2) for key in (18, 52, 60)]
    )
    connection.receive(encode_response(votes, 4, FIRST), 1.0)
    assert connection.state is State.READY


def test_a_broker_is_none_to_ask_for_its_vote() -> None:
    connection = Connection(
        "me", max_response_bytes=10_000, request_timeout_ms=1000, software_version="1", required=VoteRequest
    )
    connection.connected(0.0)
    with pytest.raises(WrongAddress, match="does not serve Vote"):
        connection.receive(encode_response(RANGES, 4, FIRST), 1.0)


def test_a_broker_of_another_age_is_told() -> None:
    connection = make()
    strange = ApiVersionsResponse(api_keys=[ApiVersion(api_key=3, min_version=90, max_version=91)])
    with pytest.raises(WrongAddress, match="MetadataRequest: the broker serves versions 90 to 91"):
        connection.receive(encode_response(strange, 4, FIRST), 1.0)


class _Handshake:
    """A conversation of two rounds."""

    def __init__(self, again_after_ms: float | None = None) -> None:
        self.rounds = 0
        self.reauthenticate_after_ms = again_after_ms

    def begin(self, ranges: ApiRanges) -> tuple[Any, int] | None:
        return SaslHandshakeRequest(mechanism="PLAIN"), 1

    def step(self, response: Any) -> tuple[Any, int] | None:
        self.rounds += 1
        if response.error_code:
            raise KafkaError(ErrorCode(response.error_code), "no such mechanism")
        return (SaslHandshakeRequest(mechanism="PLAIN"), 1) if self.rounds == 1 else None


def test_an_authenticator_has_its_say_before_the_connection_is_ready() -> None:
    connection = make(_Handshake())
    sent(connection)
    connection.receive(encode_response(RANGES, 4, FIRST), 1.0)
    assert connection.state is State.AUTHENTICATING
    for round_ in (1, 2):
        assert sent(connection) == [(17, 1, round_)]
        connection.receive(encode_response(SaslHandshakeResponse(mechanisms=[]), 1, round_), 1.0)
    assert connection.state is State.READY


def test_a_session_that_ends_is_renewed_behind_what_is_in_flight() -> None:
    connection = make(_Handshake(again_after_ms=100.0))
    sent(connection)
    connection.receive(encode_response(RANGES, 4, FIRST), 1.0)
    for round_ in (1, 2):
        connection.receive(encode_response(SaslHandshakeResponse(mechanisms=[]), 1, round_), 2.0)
    assert connection.reauthenticate_at_ms == 102.0
    answers: list[Any] = []
    connection.send(
        SaslHandshakeRequest(mechanism="x"),
        1,
        lambda response, error, now: answers.append(response),
        50.0,
        1000.0,
    )
    sent(connection)
    connection.reauthenticate(102.0)
    assert (connection.state, connection.reauthenticate_at_ms) == (State.AUTHENTICATING, float("inf"))
    assert connection.last_used_ms == 50.0
    assert sent(connection) == [(17, 1, 4)]
    connection.receive(encode_response(SaslHandshakeResponse(mechanisms=["asked"]), 1, 3), 103.0)
    assert [answer.mechanisms for answer in answers] == [["asked"]]
    assert connection.state is State.AUTHENTICATING
    connection.receive(encode_response(SaslHandshakeResponse(mechanisms=[]), 1, 4), 104.0)
    assert (connection.state, connection.reauthenticate_at_ms) == (State.READY, 204.0)


def test_a_session_that_is_renewed_behind_a_long_wait_has_its_time_after_that() -> None:
    """As a join waits for the other members: what is asked behind it is answered behind it."""
    connection = make(_Handshake(again_after_ms=100.0))
    connection.receive(encode_response(RANGES, 4, FIRST), 1.0)
    for round_ in (1, 2):
        connection.receive(encode_response(SaslHandshakeResponse(mechanisms=[]), 1, round_), 2.0)
    join = SaslHandshakeRequest(mechanism="join")
    connection.send(join, 1, lambda response, error, now: None, 50.0, 300_000.0)
    connection.reauthenticate(102.0)
    assert connection.deadline_ms() == 300_050.0
    # When that is answered, this has a time of its own.
    connection.receive(encode_response(SaslHandshakeResponse(mechanisms=[]), 1, 3), 200_000.0)
    assert connection.deadline_ms() >= 201_000.0


def test_a_refused_authentication_ends_the_connection() -> None:
    connection = make(_Handshake())
    connection.receive(encode_response(RANGES, 4, FIRST), 1.0)
    refusal = SaslHandshakeResponse(error_code=ErrorCode.UNSUPPORTED_SASL_MECHANISM, mechanisms=[])
    with pytest.raises(KafkaError, match="no such mechanism"):
        connection.receive(encode_response(refusal, 1, 1), 1.0)
