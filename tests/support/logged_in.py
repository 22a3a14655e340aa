"""A connection of somebody who has logged in by SASL PLAIN, over which one question at a time is asked.

with LoggedIn("127.0.0.1:9092", "alice", "secret") as alice:
    alice.ask(request, version)     # the decoded response
"""

from __future__ import annotations

import socket
from typing import Any, Self

from tests.interop.process import receive_frame

from ottla.wire.codec import decode
from ottla.wire.framing import decode_response_header, encode_request
from ottla.wire.messages.security.sasl import SaslAuthenticateRequest, SaslHandshakeRequest
from ottla.wire.registry import response_class


class LoggedIn:
    """The connection."""

    def __init__(self, address: str | tuple[str, int], user: str, password: str) -> None:
        host, port = address.rsplit(":", 1) if isinstance(address, str) else address
        self._socket = socket.create_connection((host, int(port)), timeout=30)
        assert self.log_in(user, password) == 0

    def log_in(self, user: str, password: str) -> int:
        """The error code of the answer."""
        assert self.ask(SaslHandshakeRequest(mechanism="PLAIN"), 1).error_code == 0
        token = f"\0{user}\0{password}".encode()
        return int(self.ask(SaslAuthenticateRequest(auth_bytes=token), 2).error_code)

    def ask(self, request: Any, version: int) -> Any:
        self._socket.sendall(encode_request(request, version, 7, "test"))
        answer = receive_frame(self._socket)
        _, start = decode_response_header(answer, 0, request.API_KEY, version)
        return decode(response_class(request.API_KEY), answer, version, start)[0]

    def close(self) -> None:
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()
