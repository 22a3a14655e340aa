"""Bytes from a socket cut into frames, without copying more than once.

A frame is a four-byte length and that many bytes. The length is checked before anything is kept for it.
"""

from ottla.client.errors import ProtocolError

_SIZE_BYTES = 4


class FrameReader:
    """Owned by one connection; what `feed` returns are views that keep their bytes alive."""

    __slots__ = ("_chunks", "_have", "_max_frame_bytes", "_need")

    def __init__(self, max_frame_bytes: int) -> None:
        self._max_frame_bytes = max_frame_bytes
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
            size = int.from_bytes(view[position : position + _SIZE_BYTES], "big", signed=True)
            if not 0 <= size <= self._max_frame_bytes:
                raise ProtocolError(f"a frame of {size} bytes was announced: not a Kafka broker?")
            self._need = _SIZE_BYTES + size
            if end - position < self._need:
                break
            frames.append(view[position + _SIZE_BYTES : position + self._need])
            position += self._need
        # The rest is copied, so that a few bytes of the next frame do not keep a large one alive.
        self._have = end - position
        self._chunks = [bytes(view[position:])] if self._have else []
        return frames
