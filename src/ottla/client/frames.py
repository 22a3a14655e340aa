"""Bytes from a socket cut into frames, without copying more than once.

A frame is a four-byte length and that many bytes. The length is checked before anything is kept for it. A driver
that is handed bytes gives them to a FrameReader; one that reads its sockets itself asks a FrameFiller where to
put them, and a large frame is then never copied.
"""

from ottla.client.errors import ProtocolError

_SIZE_BYTES = 4
# Frames that fit in here are read together with their neighbours and copied out; larger ones get their own buffer.
_SCRATCH_BYTES = 32 * 1024


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
        told = next((words for start, words in _OTHERS.items() if first.startswith(start)), None)
        raise ProtocolError(told or f"a frame of {size} bytes was announced")
    return size


class FrameReader:
    """Owned by one connection; what `feed` returns are views that keep their bytes alive."""

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
    """Owned by one connection. `buffer` says where the next bytes go, `filled` how many came; the frames it
    returns keep their bytes alive."""

    __slots__ = ("_frame", "_have", "_scratch", "max_frame_bytes")

    def __init__(self, max_frame_bytes: int) -> None:
        self.max_frame_bytes = max_frame_bytes
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
        self._frame = memoryview(bytearray(size))
        self._have = len(first)
        self._frame[: self._have] = first

    def _move(self, position: int) -> None:
        """What is left of the scratch buffer goes to its front, so that a small frame has room."""
        self._have -= position
        if position and self._have:
            self._scratch[: self._have] = bytes(self._scratch[position : position + self._have])
