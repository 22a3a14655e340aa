"""The memory that frames are gathered in, and its bound.

A frame that arrives in one piece is served from the shared read buffer and costs nothing here. One that does
not needs a buffer of its own until its last byte is in. Those buffers come from this pool and are counted by
the size the frame announced, so what a thousand half-sent frames can hold is decided here and not by them:
a frame the pool has no room for waits, with its socket unread, until another frame is finished or given up.

As in Kafka, a pool that has any room left lends one more buffer whatever its size, so the bound may be
overdrawn by one frame and no frame of a legal size waits for ever. Ordinary and giant frames have budgets of
their own: a few giant uploads that crawl must not stop everybody's one-megabyte batches.

Owner: the event loop of the broker; one pool serves all its listeners.
"""

from collections import deque
from collections.abc import Callable

ORDINARY_FRAME_BYTES = 2 * 1024 * 1024
ORDINARY_BUDGET_BYTES = 128 * 1024 * 1024
GIANT_BUDGET_BYTES = 256 * 1024 * 1024
KEPT_BUFFERS_PER_SIZE = 8
SMALLEST_BUFFER_BYTES = 4096

OnBuffer = Callable[[bytearray], None]


class FramePool:
    """Lends buffers for frames within two budgets; what does not fit waits in order of arrival."""

    def __init__(
        self, ordinary_bytes: int = ORDINARY_BUDGET_BYTES, giant_bytes: int = GIANT_BUDGET_BYTES
    ) -> None:
        self._ordinary = _Budget(ordinary_bytes)
        self._giant = _Budget(giant_bytes)
        # Touching fresh pages costs more than the rest of a one-megabyte append: keep a few warm.
        self._kept: dict[int, list[bytearray]] = {}
        # While a frame waits, connections read little at a time: what they have read they must hold.
        self.contended = False

    @property
    def lent_bytes(self) -> int:
        return self._ordinary.lent_bytes + self._giant.lent_bytes

    @property
    def waiting(self) -> int:
        return len(self._ordinary.waiting) + len(self._giant.waiting)

    def acquire(self, size_bytes: int, on_buffer: OnBuffer) -> bytearray | None:
        """A buffer of at least `size_bytes` now, or None and `on_buffer` is called when there is one."""
        budget = self._budget(size_bytes)
        if budget.waiting or not budget.has_room:
            budget.waiting.append((size_bytes, on_buffer))
            self.contended = True
            return None
        return self._lend(budget, size_bytes)

    def withdraw(self, on_buffer: OnBuffer) -> None:
        """The one who waited is gone."""
        for budget in (self._ordinary, self._giant):
            budget.waiting = deque(entry for entry in budget.waiting if entry[1] != on_buffer)
        self.contended = self.waiting > 0

    def release(self, buffer: bytearray) -> None:
        """Take a buffer back and hand its room to whoever waits."""
        size_bytes = len(buffer)
        budget = self._budget(size_bytes)
        budget.lent_bytes -= size_bytes
        if budget is self._ordinary:
            kept = self._kept.setdefault(size_bytes, [])
            if len(kept) < KEPT_BUFFERS_PER_SIZE:
                kept.append(buffer)
        while budget.waiting and budget.has_room:
            wanted, on_buffer = budget.waiting.popleft()
            self.contended = self.waiting > 0
            on_buffer(self._lend(budget, wanted))

    def _budget(self, size_bytes: int) -> "_Budget":
        return self._ordinary if size_bytes <= ORDINARY_FRAME_BYTES else self._giant

    def _lend(self, budget: "_Budget", size_bytes: int) -> bytearray:
        rounded = _round_up(size_bytes) if budget is self._ordinary else size_bytes
        budget.lent_bytes += rounded
        kept = self._kept.get(rounded)
        return kept.pop() if kept else bytearray(rounded)


class _Budget:
    __slots__ = ("lent_bytes", "limit_bytes", "waiting")

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.lent_bytes = 0
        self.waiting: deque[tuple[int, OnBuffer]] = deque()

    @property
    def has_room(self) -> bool:
        return self.lent_bytes < self.limit_bytes


def _round_up(size_bytes: int) -> int:
    """Sizes in powers of two, so that a kept buffer fits the next frame that is a little larger."""
    return max(SMALLEST_BUFFER_BYTES, 1 << (size_bytes - 1).bit_length())
