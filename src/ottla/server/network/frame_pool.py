"""FramePool: the memory that frames are gathered in, and its bound (Kafka's MemoryPool).

A frame that arrives in one piece is served from the shared read buffer and costs nothing here. One that does not needs
a buffer of its own until its last byte is in, and one that is worked on beside the loop is counted until it is not
needed any more. What all of them may hold is decided here and not by those who send them.

What is counted. While half of the budget is free a frame has all the room it announced at once, so that it is read in
large pieces. Beyond that it is counted by what has arrived: at most twice that, and 4 KiB. Announcing much costs
nobody anything: memory of a buffer is taken by the system only when it is written to.

Who waits. A frame for which there is no room waits, with its socket unread, until another one is finished or given
up; frames of up to 4 KiB never do. When all that have begun wait, the first of them gets all the room it needs, so
that somebody gets on: the budget may be overdrawn by one frame and one step. Ordinary and giant frames have budgets of
their own: a few giant uploads that crawl must not stop everybody's one-megabyte batches. And only a few giants are
read at a time, for the system gives each socket that is read a larger buffer: of the others only the first 64 KiB are
taken until there is room for all they announced.

Who is given up. While somebody waits, frames that come more slowly than LEAST_RATE lose their place, the slowest first
and no more of them than is needed. Who waits for room, or for an answer to an earlier request, is not slow.

Owner: the event loop of the broker; one pool serves all its listeners.
"""

import mmap
from collections import deque
from typing import Final, Protocol

ORDINARY_FRAME_BYTES: Final = 2 * 1024 * 1024
ORDINARY_BUDGET_BYTES: Final = 128 * 1024 * 1024
GIANT_BUDGET_BYTES: Final = 256 * 1024 * 1024
KEPT_BUFFERS_PER_SIZE: Final = 8
SMALLEST_BUFFER_BYTES: Final = 4096
# How much more room an ordinary frame gets at once when room is scarce.
LARGEST_STEP_BYTES: Final = 1024 * 1024
# What a giant frame has to bring before it is taken for one.
GIANT_BEGIN_BYTES: Final = 64 * 1024
# The allocator may hand out, and clear, memory that was used before: larger buffers are asked of the system.
LARGEST_CLEARED_BYTES: Final = 64 * 1024
# How fast a frame has to come while others wait for its memory, measured over this time at least.
LEAST_RATE_BYTES_PER_S: Final = 64 * 1024
RATE_WINDOW_S: Final = 0.3

Buffer = bytearray | mmap.mmap


class Gatherer(Protocol):
    """Who gathers a frame: a connection."""

    @property
    def received_bytes(self) -> int:
        """How much of the frame is here."""
        ...

    @property
    def is_sending(self) -> bool:
        """Is it for the client to go on?"""
        ...

    def room_given(self) -> None:
        """Its lease has more room now."""
        ...

    def give_up(self, reason: str) -> None:
        """Its frame takes too long; the lease has ended already."""
        ...


class Lease:
    """The room of one frame."""

    __slots__ = (
        "buffer",
        "granted_bytes",
        "is_waiting",
        "marked_at",
        "marked_bytes",
        "owner",
        "rate",
        "size_bytes",
    )

    def __init__(self, size_bytes: int, owner: Gatherer) -> None:
        self.size_bytes = size_bytes
        self.granted_bytes = 0  # how far the frame may be filled; this much is counted
        self.buffer: Buffer | None = None
        self.owner = owner
        self.is_waiting = False
        # How much was here when its rate began to be measured.
        self.marked_bytes = 0
        self.marked_at: float | None = None
        self.rate: float | None = None  # bytes a second, when it was measured last


class FramePool:
    """Lends room for frames within two budgets; what does not fit waits in order of arrival."""

    def __init__(
        self, ordinary_bytes: int = ORDINARY_BUDGET_BYTES, giant_bytes: int = GIANT_BUDGET_BYTES
    ) -> None:
        self._ordinary = _Budget(ordinary_bytes)
        self._giant = _Budget(giant_bytes)
        # Touching fresh pages costs more than the rest of a one-megabyte append: keep a few warm.
        self._kept: dict[int, list[Buffer]] = {}
        # While a frame waits, connections read little at a time: what they have read they must hold.
        self.contended = False

    @property
    def lent_bytes(self) -> int:
        return self._ordinary.lent_bytes + self._giant.lent_bytes

    @property
    def waiting(self) -> int:
        return len(self._ordinary.waiting) + len(self._giant.waiting)

    def begin(self, size_bytes: int, received_bytes: int, owner: Gatherer) -> Lease:
        """Room for a frame, of which some is here; its buffer is None if it waits for the first of it."""
        budget = self._budget(size_bytes)
        ordinary = budget is self._ordinary
        lease = Lease(_round_up(size_bytes) if ordinary else size_bytes, owner)
        if size_bytes <= SMALLEST_BUFFER_BYTES or (not budget.waiting and budget.has_room):
            self._grant(budget, lease, _step(budget, lease, received_bytes))
        else:
            self._wait(budget, lease)
        return lease

    def extend(self, lease: Lease) -> None:
        """More room for a frame that has filled what it had: its owner is called when there is some, maybe at once."""
        budget = self._budget(lease.size_bytes)
        self._wait(budget, lease)
        budget.blocked += 1
        self._serve_waiting(budget)

    def detach(self, lease: Lease) -> None:
        """Somebody works on a copy of the frame: its buffer is free, what it takes is counted until the end."""
        self._keep(lease)

    def end(self, lease: Lease) -> None:
        """The frame is served or given up: hand its room to whoever waits."""
        budget = self._budget(lease.size_bytes)
        if lease.is_waiting:
            lease.is_waiting = False
            budget.waiting.remove(lease)
            budget.blocked -= lease in budget.leases
        if lease in budget.leases:
            del budget.leases[lease]
            budget.lent_bytes -= lease.granted_bytes
            self._keep(lease)
        self._serve_waiting(budget)

    def give_up_slow(self, now: float) -> None:
        """To be called a few times a second, so that it is known who is slow when somebody has to wait."""
        for budget in (self._ordinary, self._giant):
            budget.measure(now)
            if budget.waiting:
                for rate, lease in sorted(budget.slow(), key=lambda slow: slow[0]):
                    if budget.waiting:
                        self.end(lease)
                        lease.owner.give_up(
                            f"its frame came at {rate:.0f} bytes/s while others waited for the memory, "
                            f"which takes at least {LEAST_RATE_BYTES_PER_S}"
                        )

    def _budget(self, size_bytes: int) -> "_Budget":
        return self._ordinary if size_bytes <= ORDINARY_FRAME_BYTES else self._giant

    def _wait(self, budget: "_Budget", lease: Lease) -> None:
        lease.is_waiting = True
        budget.waiting.append(lease)
        self.contended = True

    def _serve_waiting(self, budget: "_Budget") -> None:
        while budget.waiting and budget.has_room:
            lease = budget.waiting.popleft()
            self._give(budget, lease, _step(budget, lease, lease.owner.received_bytes))
        self._unblock(budget)
        self.contended = self.waiting > 0

    def _unblock(self, budget: "_Budget") -> None:
        """All frames that have begun wait: let the first one be finished, whatever it takes."""
        if budget.waiting and budget.blocked == len(budget.leases):
            lease = next(lease for lease in budget.waiting if lease in budget.leases)
            budget.waiting.remove(lease)
            self._give(budget, lease, lease.size_bytes - lease.granted_bytes)

    def _give(self, budget: "_Budget", lease: Lease, step_bytes: int) -> None:
        lease.is_waiting = False
        lease.marked_at = lease.rate = None
        budget.blocked -= lease in budget.leases
        self._grant(budget, lease, step_bytes)
        lease.owner.room_given()

    def _grant(self, budget: "_Budget", lease: Lease, step_bytes: int) -> None:
        if lease.buffer is None:
            kept = self._kept.get(lease.size_bytes)
            lease.buffer = kept.pop() if kept else _new_buffer(lease.size_bytes)
            budget.leases[lease] = None
        lease.granted_bytes += step_bytes
        budget.lent_bytes += step_bytes

    def _keep(self, lease: Lease) -> None:
        buffer, lease.buffer = lease.buffer, None
        if buffer is not None and lease.size_bytes <= ORDINARY_FRAME_BYTES:
            kept = self._kept.setdefault(lease.size_bytes, [])
            if len(kept) < KEPT_BUFFERS_PER_SIZE:
                kept.append(buffer)


class _Budget:
    __slots__ = ("blocked", "leases", "lent_bytes", "limit_bytes", "waiting")

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.lent_bytes = 0
        # Those that have room, in the order in which they began.
        self.leases: dict[Lease, None] = {}
        self.waiting: deque[Lease] = deque()
        # How many of those that wait have some room already.
        self.blocked = 0

    @property
    def has_room(self) -> bool:
        return self.lent_bytes < self.limit_bytes

    def measure(self, now: float) -> None:
        """How fast frames come that are for their clients to send."""
        for lease in self.leases:
            if lease.is_waiting or lease.buffer is None or not lease.owner.is_sending:
                lease.marked_at = lease.rate = None
                continue
            received = lease.owner.received_bytes
            if lease.marked_at is not None:
                measured_s = now - lease.marked_at
                if measured_s < RATE_WINDOW_S:
                    continue
                lease.rate = (received - lease.marked_bytes) / measured_s
            lease.marked_bytes, lease.marked_at = received, now

    def slow(self) -> list[tuple[float, Lease]]:
        """The frames that come too slowly, and how fast that is."""
        return [
            (lease.rate, lease)
            for lease in self.leases
            if lease.rate is not None and lease.rate < LEAST_RATE_BYTES_PER_S
        ]


def _step(budget: _Budget, lease: Lease, received_bytes: int) -> int:
    """How much more room a frame gets, of which so much is here."""
    left = lease.size_bytes - lease.granted_bytes
    if budget.lent_bytes + left <= budget.limit_bytes // 2:
        return left
    if lease.size_bytes > ORDINARY_FRAME_BYTES and received_bytes >= GIANT_BEGIN_BYTES:
        return left
    more = max(SMALLEST_BUFFER_BYTES, min(received_bytes, LARGEST_STEP_BYTES))
    return min(left, received_bytes + more - lease.granted_bytes)


def _new_buffer(size_bytes: int) -> Buffer:
    if size_bytes <= LARGEST_CLEARED_BYTES:
        return bytearray(size_bytes)
    return mmap.mmap(-1, size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)


def _round_up(size_bytes: int) -> int:
    """Sizes in powers of two, so that a kept buffer fits the next frame that is a little larger."""
    return max(SMALLEST_BUFFER_BYTES, 1 << (size_bytes - 1).bit_length())
