"""The codecs: framings of other clients, levels, and what must be refused."""

import gzip
import random
import struct
import subprocess
import sys
import zlib
from collections.abc import Callable
from pathlib import Path

import aiokafka.codec as aio
import cramjam
import pytest

from ottla.model.errors import ErrorCode, KafkaError
from ottla.records.compression import (
    CODEC_NAMES,
    CODECS,
    DEFAULT_LEVELS,
    GZIP,
    LZ4,
    MAPPED_BYTES,
    SNAPPY,
    ZSTD,
    DecompressedTooLargeError,
    compress,
    decompress,
)

LIMIT = 1 << 20
RANDOM = random.Random(7)
SAMPLES = [
    b"x",
    b"abc" * 50_000,
    RANDOM.randbytes(70_000),
    RANDOM.randbytes(100) * 3000,
    bytes(65_536),
    bytes(32_768),
]
COMPRESSED = [GZIP, SNAPPY, LZ4, ZSTD]


def code_of(codec: int, data: bytes, max_size: int = LIMIT) -> ErrorCode:
    with pytest.raises(KafkaError) as caught:
        decompress(codec, data, max_size)
    return caught.value.code


def test_names_and_ids() -> None:
    assert CODECS == {"none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}
    assert CODEC_NAMES[3] == "lz4"


@pytest.mark.parametrize("codec", range(5))
@pytest.mark.parametrize("sample", SAMPLES, ids=len)
def test_round_trip_fits_exactly(codec: int, sample: bytes) -> None:
    packed = compress(codec, memoryview(sample))
    assert decompress(codec, memoryview(packed), len(sample)) == sample
    assert code_of(codec, packed, len(sample) - 1) is ErrorCode.MESSAGE_TOO_LARGE


@pytest.mark.parametrize("codec", range(5))
def test_nothing_compresses_to_nothing(codec: int) -> None:
    assert decompress(codec, compress(codec, b""), 0) == b""


@pytest.mark.parametrize("codec", COMPRESSED)
def test_aiokafka_reads_ours_and_we_theirs(codec: int) -> None:
    name = CODEC_NAMES[codec]
    encode, decode = getattr(aio, f"{name}_encode"), getattr(aio, f"{name}_decode")
    for sample in SAMPLES:
        assert bytes(decode(compress(codec, sample))) == sample
        assert decompress(codec, bytes(encode(sample)), LIMIT) == sample


@pytest.mark.parametrize(
    ("codec", "level"),
    [(GZIP, -1), (GZIP, 1), (GZIP, 9), (LZ4, 1), (LZ4, 9), (LZ4, 17), (ZSTD, -131072), (ZSTD, 1), (ZSTD, 22)],
)
def test_levels(codec: int, level: int) -> None:
    sample = SAMPLES[3] + SAMPLES[1]
    assert decompress(codec, compress(codec, sample, level), LIMIT) == sample


def test_levels_have_an_effect() -> None:
    text = b"".join(b"%d bottles of beer on wall %d, " % (i * i, i % 7) for i in range(9000))
    for codec, low, high in ((GZIP, 1, 9), (LZ4, DEFAULT_LEVELS[LZ4], 12), (ZSTD, -5, 19)):
        assert len(compress(codec, text, high)) < len(compress(codec, text, low))
    for codec in (GZIP, LZ4, ZSTD):
        assert compress(codec, text) == compress(codec, text, DEFAULT_LEVELS[codec])


def test_snappy_framing_is_xerials() -> None:
    packed = compress(SNAPPY, bytes(40_000))
    assert packed[:16] == b"\x82SNAPPY\x00\x00\x00\x00\x01\x00\x00\x00\x01"
    (first,) = struct.unpack_from(">i", packed, 16)
    assert cramjam.snappy.decompress_raw_len(packed[20 : 20 + first]) == 32_768


def test_snappy_raw_and_streams_in_a_row() -> None:
    sample = SAMPLES[1]
    assert decompress(SNAPPY, bytes(cramjam.snappy.compress_raw(sample)), LIMIT) == sample
    assert decompress(SNAPPY, compress(SNAPPY, b"one") + compress(SNAPPY, b"two"), LIMIT) == b"onetwo"


def test_gzip_members_in_a_row_and_zlibs_own() -> None:
    assert decompress(GZIP, gzip.compress(b"one") + gzip.compress(b"two"), 6) == b"onetwo"
    assert code_of(GZIP, gzip.compress(b"one") + gzip.compress(b"two"), 5) is ErrorCode.MESSAGE_TOO_LARGE
    assert code_of(GZIP, zlib.compress(b"not gzip")) is ErrorCode.CORRUPT_MESSAGE


def test_lz4_blocks_are_independent_because_java_reads_no_others() -> None:
    packed = compress(LZ4, SAMPLES[3])
    assert packed[:7] == b"\x04\x22\x4d\x18\x60\x40\x82"
    assert packed[-4:] == bytes(4)
    for level in (1, 5, 12, 17):
        assert compress(LZ4, SAMPLES[3], level)[4] & 0x20


def test_lz4_frames_of_other_writers() -> None:
    for sample in (SAMPLES[3], SAMPLES[2]):  # linked blocks, block and content checksums
        assert decompress(LZ4, bytes(cramjam.lz4.compress(sample)), LIMIT) == sample


def test_zstd_frames_without_content_size() -> None:
    for sample in (SAMPLES[3], bytes(1_000_000)):
        stream = cramjam.zstd.Compressor(level=3)
        stream.compress(sample)
        packed = bytes(stream.finish())
        assert decompress(ZSTD, packed, LIMIT) == sample
        assert code_of(ZSTD, packed, len(sample) - 1) is ErrorCode.MESSAGE_TOO_LARGE


def test_zstd_and_lz4_frames_in_a_row() -> None:
    for codec in (LZ4, ZSTD):
        packed = compress(codec, b"one" * 100) + compress(codec, b"two" * 100_000)
        assert decompress(codec, packed, LIMIT) == b"one" * 100 + b"two" * 100_000


@pytest.mark.parametrize("codec", COMPRESSED)
@pytest.mark.parametrize("data", [b"", b"\x05", b"garbage" * 50, b"\xff" * 100])
def test_garbage_is_corrupt(codec: int, data: bytes) -> None:
    assert code_of(codec, data) is ErrorCode.CORRUPT_MESSAGE


@pytest.mark.parametrize("codec", COMPRESSED)
def test_cut_short_is_corrupt(codec: int) -> None:
    packed = compress(codec, SAMPLES[2])
    for cut in (len(packed) - 1, len(packed) // 2, 20, 5):
        assert code_of(codec, packed[:cut]) is ErrorCode.CORRUPT_MESSAGE


@pytest.mark.parametrize("codec", [LZ4, ZSTD, GZIP])
def test_trailing_garbage_is_corrupt(codec: int) -> None:
    assert code_of(codec, compress(codec, SAMPLES[2]) + b"junk") is ErrorCode.CORRUPT_MESSAGE


def test_declared_sizes_are_not_believed() -> None:
    assert code_of(SNAPPY, b"\xff\xff\xff\xff\x0f" + bytes(10)) is ErrorCode.MESSAGE_TOO_LARGE
    huge_block = b"\x82SNAPPY\x00" + struct.pack(">iii", 1, 1, 2**31 - 1) + bytes(10)
    assert code_of(SNAPPY, huge_block) is ErrorCode.CORRUPT_MESSAGE
    assert code_of(SNAPPY, huge_block[:16] + struct.pack(">i", -1)) is ErrorCode.CORRUPT_MESSAGE
    petabyte = b"\x28\xb5\x2f\xfd\xe0" + struct.pack("<Q", 1 << 50) + bytes(10)
    assert code_of(ZSTD, petabyte) is ErrorCode.MESSAGE_TOO_LARGE


@pytest.mark.parametrize("codec", COMPRESSED)
@pytest.mark.parametrize("size", [MAPPED_BYTES - 1, MAPPED_BYTES, MAPPED_BYTES + 1, 3 * MAPPED_BYTES + 17])
def test_output_that_is_mapped(codec: int, size: int) -> None:
    plain = (b"%d " % size) * (size // 4)
    plain = plain[: size - 300] + RANDOM.randbytes(300)
    packed = compress(codec, plain)
    for room in (size, size + 1, 10 * size):
        assert decompress(codec, packed, room) == plain
    with pytest.raises(DecompressedTooLargeError):
        decompress(codec, packed, size - 1)
    with pytest.raises(KafkaError) as caught:
        decompress(codec, packed[:-100], 10 * size)
    assert caught.value.code is ErrorCode.CORRUPT_MESSAGE


def test_gzip_members_in_a_row_that_are_large_together() -> None:
    members = [RANDOM.randbytes(1000) * 500 for _ in range(5)]
    packed = b"".join(gzip.compress(member) for member in members)
    assert decompress(GZIP, packed, 1 << 22) == b"".join(members)
    many = gzip.compress(b"a") * 20_000
    assert decompress(GZIP, many, 1 << 22) == b"a" * 20_000


def test_codecs_that_are_not() -> None:
    assert code_of(5, b"") is ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
    with pytest.raises(KafkaError) as caught:
        compress(7, b"")
    assert caught.value.code is ErrorCode.UNSUPPORTED_COMPRESSION_TYPE


MB = 1 << 20
BOMB_BYTES = 64 * MB


def zstd_bomb(level: int) -> bytes:
    stream = cramjam.zstd.Compressor(level=level)
    for _ in range(BOMB_BYTES // MB):
        stream.compress(bytes(MB))
    return bytes(stream.finish())


def gzip_bomb() -> bytes:
    stream = zlib.compressobj(9, zlib.DEFLATED, 31)
    return b"".join(stream.compress(bytes(MB)) for _ in range(BOMB_BYTES // MB)) + stream.flush()


def snappy_bomb() -> bytes:
    block = bytes(cramjam.snappy.compress_raw(bytes(MB)))
    return compress(SNAPPY, b"")[:16] + (struct.pack(">i", len(block)) + block) * (BOMB_BYTES // MB)


def lz4_bomb() -> bytes:
    block = bytes(cramjam.lz4.compress_block(bytes(65536), store_size=False))
    return compress(LZ4, b"")[:7] + (struct.pack("<I", len(block)) + block) * (BOMB_BYTES // 65536) + bytes(4)


DEFUSE = """
import os, resource, sys
from ottla.model.errors import KafkaError
from ottla.records.compression import compress, decompress

def peak():
    if os.path.exists("/proc/self/status"):  # ru_maxrss would start at the parent's
        with open("/proc/self/status") as status:
            return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM"))
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

codec, data = int(sys.argv[1]), open(sys.argv[2], "rb").read()
decompress(codec, compress(codec, b"load the library"), 100)
before = peak()
try:
    decompress(codec, data, int(sys.argv[3]))
    print("decompressed", peak() - before)
except KafkaError as error:
    print(error.code.name, peak() - before)
"""


@pytest.mark.parametrize(
    ("codec", "make"),
    [
        (GZIP, gzip_bomb),
        (SNAPPY, snappy_bomb),
        (LZ4, lz4_bomb),
        (ZSTD, lambda: zstd_bomb(3)),
        (ZSTD, lambda: zstd_bomb(20)),  # a window of 32 MB
    ],
)
def test_bombs_are_refused_within_the_bound(codec: int, make: Callable[[], bytes], tmp_path: Path) -> None:
    bomb = tmp_path / "bomb"
    bomb.write_bytes(make())

    def defuse(max_size: int) -> tuple[str, int]:
        command = [sys.executable, "-c", DEFUSE, str(codec), str(bomb), str(max_size)]
        outcome, growth = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
        return outcome, int(growth)

    outcome, growth = defuse(4 * MB)
    assert outcome == "MESSAGE_TOO_LARGE"
    assert growth < 16 * MB
    outcome, growth = defuse(BOMB_BYTES)
    assert outcome == "decompressed"
    assert growth > 48 * MB  # the measure sees what it should
