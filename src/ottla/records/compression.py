"""Kafka's four codecs over whole record sections, in the framings that Java reads and writes.

Rules: the output of a decompression is bounded by the caller's `max_size`: a bomb is refused with
MESSAGE_TOO_LARGE before more than that is allocated, damaged data with CORRUPT_MESSAGE. The codecs release
the GIL, and large output goes into memory that is mapped for it: the heap's would be cleared under the GIL first,
for half a second where it is 128 MB. The codec library is imported when a batch first needs it, because most
brokers never do.
"""

import mmap
import struct
import zlib
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

from ottla.model.errors import ErrorCode, KafkaError
from ottla.records.types import Buffer

NONE: Final = 0
GZIP: Final = 1
SNAPPY: Final = 2
LZ4: Final = 3
ZSTD: Final = 4

CODECS: Final[dict[str, int]] = {"none": NONE, "gzip": GZIP, "snappy": SNAPPY, "lz4": LZ4, "zstd": ZSTD}
CODEC_NAMES: Final[dict[int, str]] = {codec: name for name, codec in CODECS.items()}


# For gzip it is the library's own choice.
DEFAULT_LEVELS: Final[dict[int, int]] = {GZIP: -1, LZ4: 9, ZSTD: 3}

_GZIP_WBITS: Final = 31
_GZIP_HEADER: Final = b"\x1f\x8b\x08" + bytes(6) + b"\xff"
_GZIP_TRAILER: Final = struct.Struct("<II")
_XERIAL_MAGIC: Final = b"\x82SNAPPY\x00"
_XERIAL_HEADER: Final = _XERIAL_MAGIC + struct.pack(">ii", 1, 1)
_XERIAL_BLOCK_BYTES: Final = 32 * 1024
# Magic, FLG (version 1, independent blocks: Java reads no others), BD (64 KB blocks), header checksum.
_LZ4_MAGIC: Final = b"\x04\x22\x4d\x18"
_LZ4_HEADER: Final = _LZ4_MAGIC + b"\x60\x40\x82"
_LZ4_FLAGS: Final = 4
_LZ4_INDEPENDENT_BLOCKS: Final = 0x20
_LZ4_BLOCK_BYTES: Final = 64 * 1024
_LZ4_STORED: Final = 0x80000000
_LZ4_MAX_RATIO: Final = 255
_ZSTD_MAGIC: Final = b"\x28\xb5\x2f\xfd"
_FIRST_GUESS_RATIO: Final = 8
_FIRST_GUESS_BYTES: Final = 64 * 1024
_GROWTH: Final = 4
# Output from here on is mapped. Mapped memory costs nothing until it is written to, so there is no guessing at sizes.
MAPPED_BYTES: Final = 1024 * 1024
_LARGE_PAGES: Final[int | None] = getattr(mmap, "MADV_HUGEPAGE", None)
_GZIP_INPUT_BYTES: Final = 64 * 1024
_INT_BE: Final = struct.Struct(">i")
_INT_LE: Final = struct.Struct("<I")


class DecompressedTooLargeError(KafkaError):
    """There is more in it than the caller has room for."""

    def __init__(self, codec: int, max_size: int) -> None:
        super().__init__(
            ErrorCode.MESSAGE_TOO_LARGE,
            f"{CODEC_NAMES[codec]} data decompresses to more than {max_size} bytes",
        )


def compress(codec: int, data: Buffer, level: int | None = None) -> bytes:
    """Compress a record section; `level` means what Kafka's compression.<codec>.level does."""
    if codec == NONE:
        return bytes(data)
    if codec == SNAPPY:
        return _compress_snappy(memoryview(data))
    if codec not in DEFAULT_LEVELS:
        raise unknown_codec(codec)
    chosen = DEFAULT_LEVELS[codec] if level is None else level
    if codec == GZIP:
        return _compress_gzip(data, chosen)
    if codec == LZ4:
        return _compress_lz4(memoryview(data), chosen)
    return _compress_zstd(data, chosen)


def decompress(codec: int, data: Buffer, max_size: int) -> Buffer:
    """Decompress a record section to at most `max_size` bytes."""
    if codec == NONE:
        if len(data) > max_size:
            raise DecompressedTooLargeError(codec, max_size)
        return bytes(data)
    if codec == GZIP:
        return _decompress_gzip(data, max_size)
    if codec == SNAPPY:
        return _decompress_snappy(memoryview(data), max_size)
    if codec == LZ4:
        return _decompress_lz4(memoryview(data), max_size)
    if codec == ZSTD:
        return _decompress_zstd(memoryview(data), max_size)
    raise unknown_codec(codec)


def is_readable_by_java(codec: int, data: Buffer) -> bool:
    """Java's clients read lz4 frames of independent blocks only, and are why a broker refuses others."""
    return codec != LZ4 or len(data) <= _LZ4_FLAGS or data[_LZ4_FLAGS] & _LZ4_INDEPENDENT_BLOCKS != 0


def unknown_codec(codec: int) -> KafkaError:
    return KafkaError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, f"Unknown compression type id: {codec}")


def _corrupt(codec: int, why: object) -> KafkaError:
    return KafkaError(ErrorCode.CORRUPT_MESSAGE, f"{CODEC_NAMES[codec]} data cannot be decompressed: {why}")


def _library() -> Any:
    import cramjam

    return cramjam


def _compress_gzip(data: Buffer, level: int) -> bytes:
    """The stream that Java writes, to the byte: it names no operating system."""
    stream = zlib.compressobj(level, zlib.DEFLATED, -zlib.MAX_WBITS)
    body = stream.compress(data) + stream.flush()
    return b"".join((_GZIP_HEADER, body, _GZIP_TRAILER.pack(zlib.crc32(data), len(data) & 0xFFFFFFFF)))


def _decompress_gzip(data: Buffer, max_size: int) -> Buffer:
    """Concatenated members are one stream, as for Java."""
    view = memoryview(data)
    output = _Output(GZIP, max_size)
    position = 0
    while True:
        stream = zlib.decompressobj(_GZIP_WBITS)
        while not stream.eof:
            # A little at a time, because the stream gives back copies of what it did not use.
            piece = view[position : position + _GZIP_INPUT_BYTES]
            try:
                part = stream.decompress(piece, MAPPED_BYTES)
            except zlib.error as error:
                raise _corrupt(GZIP, error) from None
            if not part and not piece:
                raise _corrupt(GZIP, "it is cut short")
            output.add(part)
            position += len(piece) - len(stream.unconsumed_tail) - len(stream.unused_data)
        if position == len(view):
            return output.whole()


def _compress_snappy(data: memoryview) -> bytes:
    snappy = _library().snappy
    out = bytearray(_XERIAL_HEADER)
    for start in range(0, len(data), _XERIAL_BLOCK_BYTES):
        block = bytes(snappy.compress_raw(data[start : start + _XERIAL_BLOCK_BYTES]))
        out += _INT_BE.pack(len(block))
        out += block
    return bytes(out)


def _decompress_snappy(data: memoryview, max_size: int) -> Buffer:
    """Xerial framing (Java, and most clients after it), or one raw block."""
    if bytes(data[: len(_XERIAL_MAGIC)]) != _XERIAL_MAGIC:
        return _snappy_block(data, max_size, max_size)
    output = _Output(SNAPPY, max_size)
    for block in _xerial_blocks(data):
        output.add(_snappy_block(block, max_size - output.size, max_size))
    return output.whole()


def _xerial_blocks(data: memoryview) -> list[memoryview]:
    blocks = []
    pos = 0
    while pos < len(data):
        if bytes(data[pos : pos + len(_XERIAL_MAGIC)]) == _XERIAL_MAGIC:  # streams may follow one another
            pos += len(_XERIAL_HEADER)
            continue
        if len(data) - pos < 4:
            raise _corrupt(SNAPPY, "a block's length is cut short")
        (length,) = _INT_BE.unpack_from(data, pos)
        pos += 4
        if not 0 <= length <= len(data) - pos:
            raise _corrupt(SNAPPY, f"a block of {length} bytes where {len(data) - pos} are left")
        blocks.append(data[pos : pos + length])
        pos += length
    return blocks


def _snappy_block(block: memoryview, left: int, max_size: int) -> Buffer:
    library = _library()
    try:
        size = library.snappy.decompress_raw_len(block)
        if size > left:
            raise DecompressedTooLargeError(SNAPPY, max_size)
        plain = library.snappy.decompress_raw(block)
        return bytes(plain) if size < MAPPED_BYTES else memoryview(plain)
    except library.DecompressionError as error:
        raise _corrupt(SNAPPY, error) from None


def _compress_lz4(data: memoryview, level: int) -> bytes:
    """Kafka's default level means the fast compressor, every other one the slower "high compression"."""
    lz4 = _library().lz4
    if level == DEFAULT_LEVELS[LZ4]:
        return _lz4_frame(data, lz4.compress_block)
    stream = lz4.Compressor(level=level, content_checksum=False, block_linked=False)
    stream.compress(bytes(data))  # the stream takes no views
    return bytes(stream.finish())


def _lz4_frame(data: memoryview, compress_block: Callable[..., Any]) -> bytes:
    """The frame that Java writes, to the byte."""
    out = bytearray(_LZ4_HEADER)
    for start in range(0, len(data), _LZ4_BLOCK_BYTES):
        plain = data[start : start + _LZ4_BLOCK_BYTES]
        block = bytes(compress_block(plain, store_size=False))
        if len(block) < len(plain):
            out += _INT_LE.pack(len(block))
            out += block
        else:
            out += _INT_LE.pack(len(plain) | _LZ4_STORED)
            out += plain
    out += _INT_LE.pack(0)
    return bytes(out)


def _decompress_lz4(data: memoryview, max_size: int) -> Buffer:
    return _decompress_into(LZ4, data, max_size, _lz4_size_bound(data))


def _lz4_size_bound(data: memoryview) -> int:
    """No more than this can come out of the first frame: its blocks, each at its largest."""
    if len(data) < 7 or bytes(data[:4]) != _LZ4_MAGIC:
        raise _corrupt(LZ4, "it does not begin with a frame")
    flags = data[4]
    block_max = 1 << (8 + 2 * (data[5] >> 4 & 7))
    pos = 15 if flags & 0x08 else 7
    bound = 0
    while pos + 4 <= len(data):
        (word,) = _INT_LE.unpack_from(data, pos)
        if word == 0:
            break
        size = word & ~_LZ4_STORED
        bound += size if word & _LZ4_STORED else min(block_max, size * _LZ4_MAX_RATIO)
        pos += 4 + size + (4 if flags & 0x10 else 0)
    return bound


def _compress_zstd(data: Buffer, level: int) -> bytes:
    return bytes(_library().zstd.compress(data, level=level))


def _decompress_zstd(data: memoryview, max_size: int) -> Buffer:
    if len(data) < 6 or bytes(data[:4]) != _ZSTD_MAGIC:
        raise _corrupt(ZSTD, "it does not begin with a frame")
    known = _zstd_content_size(data)
    if known is not None and known > max_size:
        raise DecompressedTooLargeError(ZSTD, max_size)
    guess = max(_FIRST_GUESS_BYTES, _FIRST_GUESS_RATIO * len(data)) if known is None else known
    return _decompress_into(ZSTD, data, max_size, guess)


def _zstd_content_size(data: memoryview) -> int | None:
    """The size the first frame's header declares, if it does (RFC 8878, 3.1.1.1)."""
    descriptor = data[4]
    single_segment = descriptor & 0x20
    width = (0 if not single_segment else 1, 2, 4, 8)[descriptor >> 6]
    if width == 0:
        return None
    pos = 5 + (0 if single_segment else 1) + (0, 1, 2, 4)[descriptor & 3]
    if len(data) < pos + width:
        raise _corrupt(ZSTD, "its header is cut short")
    size = int.from_bytes(data[pos : pos + width], "little")
    return size + 256 if width == 2 else size


def _decompress_into(codec: int, data: memoryview, max_size: int, first_guess: int) -> Buffer:
    """Decompress into a buffer of the guessed size, growing it where that was too small, up to `max_size`."""
    library = _library()
    module = library.lz4 if codec == LZ4 else library.zstd
    size = min(first_guess, max_size)
    while True:
        if size >= MAPPED_BYTES:
            size = max_size
        out = bytearray(size) if size < MAPPED_BYTES else _map(size)
        try:
            written = module.decompress_into(data, out)
        except library.DecompressionError as error:
            if size < max_size:
                size = min(max(size, _FIRST_GUESS_BYTES) * _GROWTH, max_size)
                continue
            if "whole buffer" in str(error):
                raise DecompressedTooLargeError(codec, max_size) from None
            raise _corrupt(codec, error) from None
        if isinstance(out, memoryview):
            return out[:written]
        del out[written:]
        return out


def _map(size: int) -> memoryview:
    """Memory that the system gives, and clears, where it is first written to; it goes with its last reader."""
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if _LARGE_PAGES is not None:
        # Half the time to fill it, and none to give it back, which is done under the GIL. It may not be had here.
        with suppress(OSError):
            memory.madvise(_LARGE_PAGES)
    return memoryview(memory)


class _Output:
    """What comes out of a codec piece by piece."""

    __slots__ = ("_codec", "_mapped", "_max_size", "_parts", "size")

    def __init__(self, codec: int, max_size: int) -> None:
        self._codec = codec
        self._max_size = max_size
        self._parts: list[Buffer] = []
        self._mapped: memoryview | None = None
        self.size = 0

    def add(self, part: Buffer) -> None:
        before, self.size = self.size, self.size + len(part)
        if self.size > self._max_size:
            raise DecompressedTooLargeError(self._codec, self._max_size)
        if self._mapped is not None:
            self._mapped[before : self.size] = part
            return
        self._parts.append(part)
        if len(self._parts) > 1 and self.size >= MAPPED_BYTES:
            self._mapped, self.size = _map(self._max_size), 0
            for held in self._parts:
                self.add(held)
            self._parts.clear()

    def whole(self) -> Buffer:
        if self._mapped is not None:
            return self._mapped[: self.size]
        return self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
