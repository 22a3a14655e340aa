"""How far a fetched run of batches can be used, by both kernels."""

import struct
from types import ModuleType

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.support.batches import set_offset_and_epoch

from ottla.records import _kernel_py
from ottla.records.batch import HEADER_SIZE
from ottla.records.record import build_batch

NO_END = 2**63 - 1


def run(*sizes: int) -> tuple[bytes, list[int]]:
    """Batches of so many records, one after another; and where each begins."""
    out, starts, offset = b"", [], 0
    for count in sizes:
        data = build_batch([(1, None, b"value", ())] * count)
        set_offset_and_epoch(data, 0, offset, 0)
        starts.append(len(out))
        out += data
        offset += count
    return out, [*starts, len(out)]


def test_all_of_them(kernel: ModuleType) -> None:
    data, starts = run(3, 1, 5)
    assert kernel.whole_batches(data, 0, len(data), NO_END) == (len(data), 9)
    assert kernel.whole_batches(data, starts[1], len(data), NO_END) == (len(data), 9)
    assert kernel.whole_batches(b"x" + data, 1, 1 + starts[2], NO_END) == (1 + starts[2], 4)


def test_the_tail_may_be_cut_anywhere(kernel: ModuleType) -> None:
    data, starts = run(3, 1, 5)
    for cut in range(len(data)):
        whole = max(start for start in starts if start <= cut)
        expected = {starts[0]: -1, starts[1]: 3, starts[2]: 4}[whole]
        assert kernel.whole_batches(data[:cut], 0, cut, NO_END) == (whole, expected)


def test_batches_from_the_end_on_are_left_out(kernel: ModuleType) -> None:
    data, starts = run(3, 1, 5)
    for end_offset in range(10):
        position, next_offset = kernel.whole_batches(data, 0, len(data), end_offset)
        wanted = sum(first < end_offset for first in (0, 3, 4))
        assert position == starts[wanted]
        assert next_offset == (end_offset if wanted < 3 else 9)


def test_a_length_that_cannot_be_ends_the_walk(kernel: ModuleType) -> None:
    data, starts = run(3, 1)
    for length in (-1, 0, HEADER_SIZE - 13, 2**31 - 1, -(2**31)):
        broken = bytearray(data)
        struct.pack_into(">i", broken, starts[1] + 8, length)
        assert kernel.whole_batches(broken, 0, len(broken), NO_END) == (starts[1], 3)


def test_a_range_outside_of_the_buffer_is_refused(kernel: ModuleType) -> None:
    for start, end in ((-1, 0), (0, 1), (1, 0)):
        with pytest.raises(ValueError, match="does not lie in a buffer"):
            kernel.whole_batches(b"", start, end, NO_END)
    with pytest.raises(TypeError):
        kernel.whole_batches(b"")
    with pytest.raises(OverflowError):
        kernel.whole_batches(b"", 0, 0, 2**63)


def test_more_than_what_is_walked_with_the_lock_held(kernel: ModuleType) -> None:
    data, _ = run(3)
    many = bytearray(data * 20_000)
    assert kernel.whole_batches(many, 0, len(many) - 1, NO_END)[0] == len(many) - len(data)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(
        st.tuples(st.integers(0, 2**64 - 1), st.integers(40, 60), st.integers(0, 2**32 - 1)), max_size=4
    ),
    st.binary(max_size=100),
    st.integers(-(2**63), 2**63 - 1),
)
def test_both_agree_on_garbage(
    kernel: ModuleType, headers: list[tuple[int, int, int]], tail: bytes, end_offset: int
) -> None:
    data = b"".join(
        struct.pack(">QI11xI", offset, length, delta).ljust(12 + length, b"\0")
        for offset, length, delta in headers
    )
    data += tail
    expected = _kernel_py.whole_batches(data, 0, len(data), end_offset)
    assert kernel.whole_batches(data, 0, len(data), end_offset) == expected
