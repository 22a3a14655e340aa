"""Whatever a stranger sends to a listener with SASL, nobody is served without a login, and nothing breaks."""

import asyncio
import logging
from contextlib import suppress
from functools import partial
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.server.network.test_authentication import HEARTBEAT, Connect, Server, Users, run

from ottla.security.principal import ANONYMOUS
from ottla.wire.framing import API_VERSIONS, request_frame
from ottla.wire.messages.api_versions import ApiVersionsRequest
from ottla.wire.messages.security.sasl import SaslAuthenticateRequest, SaslHandshakeRequest

tokens = st.binary(max_size=60) | st.sampled_from([b"", b"\0", b"\0alice\0wrong", b"bob\0alice\0alice-secre"])
requests: st.SearchStrategy[bytes] = st.one_of(
    st.builds(
        lambda mechanism, version: bytes(
            request_frame(SaslHandshakeRequest(mechanism=mechanism), version, 7, "c")
        ),
        st.sampled_from(["PLAIN", "SLOW"]) | st.text(max_size=10),
        st.integers(0, 1),
    ),
    st.builds(
        lambda token, version: bytes(
            request_frame(SaslAuthenticateRequest(auth_bytes=token), version, 7, "c")
        ),
        tokens,
        st.integers(0, 2),
    ),
    tokens.map(lambda token: len(token).to_bytes(4, "big") + token),
    st.just(bytes(request_frame(HEARTBEAT, 0, 7, "c"))),
    st.just(bytes(request_frame(ApiVersionsRequest(), 0, 7, "c"))),
)


@st.composite
def conversations(draw: st.DrawFn) -> bytes:
    """Requests in any order, some with bytes of them changed, cut off or repeated."""
    data = bytearray(b"".join(draw(st.lists(requests, max_size=6))))
    for _ in range(draw(st.integers(0, 3))):
        if data:
            data[draw(st.integers(0, len(data) - 1))] = draw(st.integers(0, 255))
    return bytes(data[: draw(st.integers(0, len(data)))] if draw(st.booleans()) else data)


class _Traces(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info is not None and record.exc_info[0] is not None:
            self.found.append(record.getMessage())


async def _send(data: bytes, server: Server, connect: Connect) -> None:
    client = await connect()
    client.writer.write(data)
    client.writer.write_eof()
    with suppress(ConnectionError):
        await asyncio.wait_for(client.reader.read(), 30)
    client.writer.close()
    for api_key, principal in server.served:
        assert (api_key, principal) == (API_VERSIONS, ANONYMOUS)


@settings(max_examples=100, deadline=None)
@given(conversations())
def test_nobody_is_served_without_a_login(data: bytes) -> None:
    traces, logger = _Traces(), logging.getLogger("ottla")
    logger.addHandler(traces)
    try:
        scenario: Any = partial(_send, data)
        run(scenario, Users())
    finally:
        logger.removeHandler(traces)
    assert traces.found == []
