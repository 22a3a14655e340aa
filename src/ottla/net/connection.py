"""One connection to one broker, as a state machine: bytes in, bytes out.

    CONNECTING -> NEGOTIATING -> (AUTHENTICATING ->) READY (-> AUTHENTICATING -> READY) -> CLOSED

Rules: no socket, clock or await here; `now` is a parameter, in milliseconds of a clock that never goes back.
Responses come in the order of the requests (Kafka promises that), so what is in flight is a queue. Owned by the
network core, one per attempt to connect: a new attempt is a new object.

A frame is a four-byte length and that many bytes; the length is checked before anything is kept for it. A driver that
is handed bytes gives them to a FrameReader; one that reads its sockets itself asks a FrameFiller where to put them, and
a large frame is then never copied.
"""

import mmap
from collections import deque
from collections.abc import Callable, Mapping
from enum import Enum
from operator import attrgetter
from typing import Any, NamedTuple, Protocol

from ottla.model.errors import ErrorCode, KafkaError
from ottla.net.errors import ConnectionLost, ProtocolError, UnsupportedVersion, WrongAddress
from ottla.wire.codec import WireError, decode
from ottla.wire.framing import API_VERSIONS, decode_response_header, request_frame
from ottla.wire.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from ottla.wire.messages.metadata import MetadataRequest
from ottla.wire.registry import response_class

_SIZE_BYTES = 4
# Frames that fit in here are read together with their neighbours and copied out; larger ones get their own buffer.
_SCRATCH_BYTES = 32 * 1024
# A larger frame has memory of the system's own, which takes it page by page as bytes come: what a peer announces, and
# that may be a gigabyte, costs nothing. Smaller ones are cheaper where memory that was used before is cleared for them.
_LARGEST_CLEARED_BYTES = 16 * 1024 * 1024
# What a connection keeps for its next large frame: memory that was just used need not be cleared, and is in the cache.
_LARGEST_SPARE_BYTES = 2 * 1024 * 1024


# How others begin to speak, where four bytes of a length should be.
_OTHERS = {
    b"HTTP": "it answers in HTTP",
    b"<": "it answers in HTML",
    b"SSH-": "it answers in SSH",
    b"\x15\x03": "it answers in TLS (if it is a listener with TLS: security.protocol=SSL)",
}


def checked_size(prefix: memoryview, max_frame_bytes: int) -> int:
    """The length that four bytes announce; ProtocolError if no broker would say so."""
    size = int.from_bytes(prefix, "big", signed=True)
    if not 0 <= size <= max_frame_bytes:
        first = bytes(prefix)
        known = next((words for start, words in _OTHERS.items() if first.startswith(start)), None)
        raise ProtocolError(known or f"a frame of {size} bytes was announced")
    return size


class FrameReader:
    """Bytes that were handed over, cut into frames; what `feed` returns are views that keep their bytes alive.

    For asyncio, whose bytes are new each time and nobody else's: a frame that came in one piece is never copied. Not a
    FrameFiller behind a BufferedProtocol: that would be asked for room before each read, one call more, and would copy
    small frames out of the scratch buffer that the next read overwrites.
    """

    __slots__ = ("_chunks", "_have", "_need", "max_frame_bytes")

    def __init__(self, max_frame_bytes: int) -> None:
        self.max_frame_bytes = max_frame_bytes
        self._chunks: list[bytes | memoryview] = []
        self._have = 0
        self._need = _SIZE_BYTES

    def feed(self, data: bytes) -> list[memoryview]:
        """The frames that are whole now."""
        self._chunks.append(data)
        self._have += len(data)
        if self._have < self._need:
            return []
        view = memoryview(data if len(self._chunks) == 1 else b"".join(self._chunks))
        return self._cut(view)

    def _cut(self, view: memoryview) -> list[memoryview]:
        frames = []
        position, end = 0, len(view)
        while True:
            self._need = _SIZE_BYTES
            if end - position < self._need:
                break
            size = checked_size(view[position : position + _SIZE_BYTES], self.max_frame_bytes)
            self._need = _SIZE_BYTES + size
            if end - position < self._need:
                break
            frames.append(view[position + _SIZE_BYTES : position + self._need])
            position += self._need
        # The rest is copied, so that a few bytes of the next frame do not keep a large one alive.
        self._have = end - position
        self._chunks = [bytes(view[position:])] if self._have else []
        return frames


class FrameFiller:
    """Bytes read into its own buffers, cut into frames: `buffer` says where the next bytes go, `filled` how many came;
    the frames it returns keep their bytes alive.

    For a driver that reads its sockets itself and chooses where to (net.selector): a large frame, which takes many
    reads, is read to where it stays. Not a FrameReader behind `recv`: that would gather the pieces and join them, and
    copy all of it once more.
    """

    __slots__ = ("_frame", "_have", "_scratch", "_spare", "max_frame_bytes")

    def __init__(self, max_frame_bytes: int) -> None:
        self.max_frame_bytes = max_frame_bytes
        # Where the last large frame went: for the next one, if nobody looks at that any more.
        self._spare = bytearray()
        self._scratch = memoryview(bytearray(_SCRATCH_BYTES))
        self._frame: memoryview | None = None  # the frame under way, once its length is known and large
        self._have = 0  # bytes in the frame, or in the scratch buffer if there is none

    def buffer(self) -> memoryview:
        """Room for at least one byte, to be filled from its beginning."""
        return (self._scratch if self._frame is None else self._frame)[self._have :]

    def filled(self, count: int) -> list[memoryview]:
        """So many bytes are in the last buffer; the frames that are whole now."""
        self._have += count
        if self._frame is None:
            return self._cut()
        if self._have < len(self._frame):
            return []
        frame, self._frame, self._have = self._frame, None, 0
        return [frame]

    def _cut(self) -> list[memoryview]:
        frames: list[memoryview] = []
        scratch, position, end = self._scratch, 0, self._have
        while end - position >= _SIZE_BYTES:
            size = checked_size(scratch[position : position + _SIZE_BYTES], self.max_frame_bytes)
            start = position + _SIZE_BYTES
            if end - start < size:
                self._begin(size, scratch[start:end]) if size > _SCRATCH_BYTES // 2 else self._move(position)
                return frames
            frames.append(memoryview(bytes(scratch[start : start + size])))
            position = start + size
        self._move(position)
        return frames

    def _begin(self, size: int, first: memoryview) -> None:
        """A buffer of its own for a large frame, with what has come of it."""
        self._frame = self._room(size)
        self._have = len(first)
        self._frame[: self._have] = first

    def _room(self, size: int) -> memoryview:
        if size > _LARGEST_CLEARED_BYTES:
            return memoryview(mmap.mmap(-1, size))
        if size > _LARGEST_SPARE_BYTES:
            return memoryview(bytearray(size))
        if len(self._spare) < size or _is_looked_at(self._spare):
            self._spare = bytearray(size)
        return memoryview(self._spare)[:size]

    def _move(self, position: int) -> None:
        """What is left of the scratch buffer goes to its front, so that a small frame has room."""
        self._have -= position
        if position and self._have:
            self._scratch[: self._have] = bytes(self._scratch[position : position + self._have])


def _is_looked_at(buffer: bytearray) -> bool:
    """Is there a view of it? Then it cannot change its size."""
    try:
        buffer.append(0)
    except BufferError:
        return True
    del buffer[-1]
    return False


class ApiRanges:
    """What one node said it serves: which version of each request to use with it, the highest that both sides know
    (KIP-35)."""

    __slots__ = ("_ranges", "features", "features_epoch")

    def __init__(
        self,
        ranges: Mapping[int, tuple[int, int]],
        features: Mapping[str, int] | None = None,
        features_epoch: int = -1,
    ) -> None:
        self._ranges = dict(ranges)
        self.features = dict(features or {})  # the levels in force in the cluster (KIP-584)
        self.features_epoch = features_epoch

    @classmethod
    def from_response(cls, response: Any) -> "ApiRanges":
        ranges = {key.api_key: (key.min_version, key.max_version) for key in response.api_keys}
        levels = {feature.name: feature.max_version_level for feature in response.finalized_features}
        return cls(ranges, levels, response.finalized_features_epoch)

    def of(self, api_key: int) -> tuple[int, int] | None:
        return self._ranges.get(api_key)

    def version_for(self, request_type: Any, at_most: int | None = None) -> int:
        """The version to speak; UnsupportedVersion if there is none in common."""
        served = self._ranges.get(request_type.API_KEY)
        if served is None:
            raise UnsupportedVersion(f"the broker does not serve {request_type.NAME}")
        ours: range = request_type.VALID_VERSIONS
        highest = min(served[1], ours[-1] if at_most is None else min(ours[-1], at_most))
        if highest < max(served[0], ours[0]):
            raise UnsupportedVersion(
                f"{request_type.NAME}: the broker serves versions {served[0]} to {served[1]}, "
                f"this client can use {ours[0]} to {ours[-1] if at_most is None else at_most}"
            )
        return highest


SOFTWARE_NAME = "ottla"
# Version 5 exists only in the 4.4 sources.
API_VERSIONS_AT_MOST = 4

# The id of the first request, which a broker only repeats. Two line ends: a web server, which would wait for the rest
# of a line, answers at once, and is known by what it says.
FIRST_CORRELATION_ID = 0x0D0A0D0A
# No broker has more to say before it is ready; what comes as a length may be the first bytes of something else.
MAX_FIRST_ANSWER_BYTES = 1 << 20
# Only controllers are asked for their vote (KIP-595).
_VOTE = 52

# Called with (response, None, now) or (None, error, now).
OnDone = Callable[[Any, KafkaError | None, float], None]


class State(Enum):
    """Where a connection is in its life."""

    CONNECTING = "connecting"
    NEGOTIATING = "negotiating"
    AUTHENTICATING = "authenticating"
    READY = "ready"
    CLOSED = "closed"


TRANSITIONS: dict[State, frozenset[State]] = {
    State.CONNECTING: frozenset({State.NEGOTIATING, State.CLOSED}),
    State.NEGOTIATING: frozenset({State.AUTHENTICATING, State.READY, State.CLOSED}),
    State.AUTHENTICATING: frozenset({State.READY, State.CLOSED}),
    State.READY: frozenset({State.AUTHENTICATING, State.CLOSED}),
    State.CLOSED: frozenset(),
}


class SlowStep(NamedTuple):
    """A step that has to be worked out first, not on the loop: what it returns is for `Authenticator.worked`."""

    function: Callable[[], Any]


# A request and its version, or what has to be worked out before there is one; None when done.
Step = tuple[Any, int] | SlowStep | None


class Authenticator(Protocol):
    """The hook for SASL: a conversation of requests and responses between negotiation and readiness."""

    # After which time, from the last step on, it is to be had again; None if never.
    reauthenticate_after_ms: float | None

    def begin(self, ranges: ApiRanges) -> tuple[Any, int] | None:
        """The first request and its version, or None if nothing is to be said."""
        ...

    def step(self, response: Any) -> Step:
        """The next request, or None when done; raises KafkaError when refused."""
        ...

    def worked(self, result: Any) -> Step:
        """The next request after a SlowStep."""
        ...


class InFlight(NamedTuple):
    """A request that waits for its response."""

    correlation_id: int
    api_key: int
    name: str
    version: int
    deadline_ms: float
    on_done: OnDone


_DEADLINE_MS: Callable[[InFlight], float] = attrgetter("deadline_ms")


class Connection:
    """Requests out, responses in, in order."""

    def __init__(
        self,
        client_id: str,
        *,
        max_response_bytes: int,
        request_timeout_ms: int,
        software_version: str,
        authenticator: Authenticator | None = None,
        required: Any = MetadataRequest,
    ) -> None:
        """`required` is the request that whoever answers must serve to be of use; brokers alone serve Metadata."""
        self.state = State.CONNECTING
        self.ranges = ApiRanges({})
        self.in_flight: deque[InFlight] = deque()
        self.throttled_until_ms = float("-inf")
        self.last_used_ms = float("-inf")
        self.reauthenticate_at_ms = float("inf")
        # What its authenticator wants worked out, for whoever can have that done.
        self.slow_step: Callable[[], Any] | None = None
        self._client_id = client_id
        self._request_timeout_ms = request_timeout_ms
        self._software_version = software_version
        self._authenticator = authenticator
        self._required = required
        self._max_response_bytes = max_response_bytes
        self._frames = FrameReader(min(max_response_bytes, MAX_FIRST_ANSWER_BYTES))
        self._filler: FrameFiller | None = None  # for a driver that reads into our buffers
        self._out: list[bytearray] = []
        self._next_correlation_id = 0

    # -- what happens to it ---------------------------------------------------------------------------

    def connected(self, now: float) -> None:
        """The transport is up: the first word is ApiVersions."""
        self._become(State.NEGOTIATING)
        self._ask_versions(API_VERSIONS_AT_MOST, now)

    def receive(self, data: bytes, now: float) -> None:
        """Bytes arrived. Calls back for each response; ProtocolError if they are no Kafka."""
        try:
            for frame in self._frames.feed(data):
                self._on_frame(frame, now)
        except ProtocolError as error:
            self._refuse_nonsense(error)
            raise

    def buffer(self) -> memoryview:
        """Where the next bytes may be put, for a driver that would rather fill a buffer than hand bytes over."""
        if self._filler is None:
            self._filler = FrameFiller(self._frames.max_frame_bytes)
        return self._filler.buffer()

    def filled(self, count: int, now: float) -> None:
        """So many bytes were put there: as `receive`."""
        assert self._filler is not None
        try:
            for frame in self._filler.filled(count):
                self._on_frame(frame, now)
        except ProtocolError as error:
            self._refuse_nonsense(error)
            raise

    def close(self, error: KafkaError, now: float) -> None:
        """The transport is gone, or is to go: everything in flight fails."""
        if self.state is State.CLOSED:
            return
        self._become(State.CLOSED)
        self._out.clear()
        self.slow_step = None
        waiting, self.in_flight = self.in_flight, deque()
        for request in waiting:
            request.on_done(None, error, now)

    # -- what is done with it -------------------------------------------------------------------------

    def send(self, request: Any, version: int, on_done: OnDone | None, now: float, timeout_ms: float) -> None:
        """Queue a request; without `on_done` no response is expected (Produce with acks=0)."""
        assert self.state is not State.CLOSED
        self.last_used_ms = now
        correlation_id = self._next_correlation_id
        self._next_correlation_id = (correlation_id + 1) & 0x7FFFFFFF
        if self.state is State.NEGOTIATING:
            correlation_id = FIRST_CORRELATION_ID
        self._out.append(request_frame(request, version, correlation_id, self._client_id))
        if on_done is not None:
            deadline = now + timeout_ms
            entry = InFlight(correlation_id, request.API_KEY, request.NAME, version, deadline, on_done)
            self.in_flight.append(entry)

    def reauthenticate(self, now: float) -> None:
        """The session is about to end: prove again who we are, behind what is in flight; nothing else is sent until
        then (KIP-368)."""
        assert self._authenticator is not None
        self.reauthenticate_at_ms = float("inf")
        used_ms = self.last_used_ms  # nobody has used it
        step = self._authenticator.begin(self.ranges)
        assert step is not None
        self._become(State.AUTHENTICATING)
        # Its answer comes behind theirs, and a join may wait for the others for longer than a request has time.
        behind_ms = max((request.deadline_ms - now for request in self.in_flight), default=0.0)
        self._send_step(step, now, max(behind_ms, 0.0))
        self.last_used_ms = used_ms

    def worked(self, result: Any, now: float) -> None:
        """The slow step was made."""
        assert self._authenticator is not None
        self._next_step(self._authenticator.worked(result), now)

    def take_output(self) -> list[bytearray]:
        """What is to be written now."""
        out, self._out = self._out, []
        return out

    def deadline_ms(self) -> float:
        """When the first of the requests in flight is overdue."""
        # Not the first in the queue: a long call may stand before a short one.
        return min(map(_DEADLINE_MS, self.in_flight), default=float("inf"))

    # -- inside ---------------------------------------------------------------------------------------

    def _become(self, state: State) -> None:
        assert state in TRANSITIONS[self.state], f"{self.state} -> {state}"
        self.state = state
        if state is State.READY:
            self._frames.max_frame_bytes = self._max_response_bytes
            if self._filler is not None:
                self._filler.max_frame_bytes = self._max_response_bytes

    def _refuse_nonsense(self, error: ProtocolError) -> None:
        """Whoever answers nonsense from the beginning is no broker: the address is wrong."""
        if self.state is State.NEGOTIATING and not isinstance(error, WrongAddress):
            raise WrongAddress(f"this is not Kafka: {error.message}") from error

    def _on_frame(self, frame: memoryview, now: float) -> None:
        if not self.in_flight:
            raise ProtocolError("a response came that nobody asked for")
        request = self.in_flight.popleft()
        try:
            response = self._decode(frame, request)
        except (ProtocolError, WireError) as error:
            lost = ProtocolError(f"{request.name} v{request.version}: {error}")
            request.on_done(None, lost, now)
            raise lost from error
        throttle_ms = getattr(response, "throttle_time_ms", 0)
        if throttle_ms:
            # KIP-219: the broker has answered already and trusts the client to keep quiet for so long.
            self.throttled_until_ms = now + throttle_ms
        request.on_done(response, None, now)

    def _decode(self, frame: memoryview, request: InFlight) -> Any:
        correlation_id, body = decode_response_header(frame, 0, request.api_key, request.version)
        if correlation_id != request.correlation_id:
            raise ProtocolError(f"correlation id {correlation_id} instead of {request.correlation_id}")
        version = request.version
        if request.api_key == API_VERSIONS and _is_unsupported(frame, body):
            version = 0  # KIP-511: whatever was asked, the refusal is written as version 0
        return decode(response_class(request.api_key), frame, version, body)[0]

    def _ask_versions(self, version: int, now: float) -> None:
        request = ApiVersionsRequest()
        if version >= 3:
            request.client_software_name = SOFTWARE_NAME
            request.client_software_version = self._software_version

        def answered(response: ApiVersionsResponse | None, error: KafkaError | None, now: float) -> None:
            if response is not None:
                self._on_versions(response, version, now)

        self.send(request, version, answered, now, self._request_timeout_ms)

    def _on_versions(self, response: ApiVersionsResponse, asked: int, now: float) -> None:
        if response.error_code == ErrorCode.UNSUPPORTED_VERSION and asked > 0:
            served = ApiRanges.from_response(response).of(API_VERSIONS)
            self._ask_versions(min(asked - 1, served[1]) if served else 0, now)
            return
        if response.error_code:
            raise ProtocolError(f"ApiVersions was refused with error {response.error_code}")
        self.ranges = ApiRanges.from_response(response)
        self._check_served()
        step = self._authenticator.begin(self.ranges) if self._authenticator else None
        if step is None:
            self._become(State.READY)
            return
        self._become(State.AUTHENTICATING)
        self._send_step(step, now)

    def _check_served(self) -> None:
        """A node that does not serve what the connection was made for is at the wrong address."""
        try:
            self.ranges.version_for(self._required)
        except UnsupportedVersion as error:
            if self._required is MetadataRequest and self.ranges.of(_VOTE) is not None:
                raise WrongAddress("this is the port of a controller: clients use that of a broker") from None
            raise WrongAddress(error.message or str(error)) from None

    def _send_step(self, step: tuple[Any, int], now: float, behind_ms: float = 0.0) -> None:
        request, version = step

        def answered(response: Any, error: KafkaError | None, now: float) -> None:
            if response is None:
                return
            assert self._authenticator is not None
            self._next_step(self._authenticator.step(response), now)

        self.send(request, version, answered, now, behind_ms + self._request_timeout_ms)

    def _next_step(self, step: Step, now: float) -> None:
        assert self._authenticator is not None
        if step is None:
            after_ms = self._authenticator.reauthenticate_after_ms
            self.reauthenticate_at_ms = float("inf") if after_ms is None else now + after_ms
            self._become(State.READY)
        elif isinstance(step, SlowStep):
            self.slow_step = step.function
        else:
            self._send_step(step, now)


def _is_unsupported(frame: memoryview, body: int) -> bool:
    error_code = int.from_bytes(frame[body : body + 2], "big", signed=True)
    return error_code == ErrorCode.UNSUPPORTED_VERSION


def lost(address: str, reason: str) -> ConnectionLost:
    """The error for whatever was in flight to a broker when its connection went."""
    return ConnectionLost(f"the connection to {address} was lost: {reason}")
