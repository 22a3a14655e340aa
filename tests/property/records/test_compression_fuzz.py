"""Damaged compressed data gives the right error or the right bytes; nothing else, and never more than was allowed."""

from hypothesis import given, settings
from hypothesis import strategies as st

from ottla.model.errors import ErrorCode, KafkaError
from ottla.records.compression import compress, decompress

LIMIT = 200_000
codecs = st.sampled_from([1, 2, 3, 4])
texts = st.builds(lambda part, times: part * times, st.binary(min_size=1, max_size=60), st.integers(1, 300))


@given(codecs, texts, st.sampled_from([None, 1, 5]))
@settings(max_examples=60)
def test_round_trip(codec: int, data: bytes, level: int | None) -> None:
    assert decompress(codec, compress(codec, data, level), len(data)) == data


@given(codecs, texts, st.data())
@settings(max_examples=200)
def test_damage_is_an_error_or_harmless(codec: int, data: bytes, draw: st.DataObject) -> None:
    packed = bytearray(compress(codec, data))
    for _ in range(draw.draw(st.integers(1, 4))):
        packed[draw.draw(st.integers(0, len(packed) - 1))] = draw.draw(st.integers(0, 255))
    check(codec, bytes(packed))


@given(codecs, st.binary(max_size=200))
@settings(max_examples=200)
def test_random_bytes(codec: int, data: bytes) -> None:
    check(codec, data)
    prefixes = {1: b"\x1f\x8b\x08", 2: b"\x82SNAPPY\x00", 3: b"\x04\x22\x4d\x18", 4: b"\x28\xb5\x2f\xfd"}
    check(codec, prefixes[codec] + data)


def check(codec: int, packed: bytes) -> None:
    try:
        size, code = len(decompress(codec, packed, LIMIT)), None
    except KafkaError as error:
        size, code = 0, error.code
    assert size <= LIMIT
    assert code in (None, ErrorCode.CORRUPT_MESSAGE, ErrorCode.MESSAGE_TOO_LARGE)
