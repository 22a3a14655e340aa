"""Rows for Python: as many as the machine has memory for, were they all large."""

from pathlib import Path

import pytest

from ottla.spark.session import MAX_ROWS, MIN_ROWS, direct_mb, memory_mb, rows_a_batch


@pytest.mark.parametrize(
    ("memory", "tasks", "rows"),
    [(65_536, 2, MAX_ROWS), (16_384, 8, 341), (8_192, 8, 170), (2_048, 8, MIN_ROWS), (512, 64, MIN_ROWS)],
)
def test_so_many_rows(memory: int, tasks: int, rows: int) -> None:
    assert rows_a_batch(memory, tasks) == rows


@pytest.mark.parametrize("tasks", [1, 2, 8, 24])
@pytest.mark.parametrize("memory", [8_192, 16_384, 65_536])
def test_rows_of_a_megabyte_leave_half_of_the_machine_to_others(memory: int, tasks: int) -> None:
    rows = rows_a_batch(memory, tasks)
    if rows > MIN_ROWS:
        in_java, in_python = 2 * rows, rows
        assert tasks * (in_java + in_python) <= memory // 2


@pytest.mark.parametrize(
    ("rows", "megabytes"), [(100, 256), (128, 256), (129, 512), (500, 1024), (1000, 2048)]
)
def test_a_buffer_of_such_rows_may_grow_beside_the_one_before(rows: int, megabytes: int) -> None:
    assert direct_mb(rows, 1) == megabytes
    assert direct_mb(rows, 3) == 3 * megabytes


def test_a_container_has_what_it_may_take(tmp_path: Path) -> None:
    machine = memory_mb(tmp_path / "not there")
    assert machine > 0
    limit = tmp_path / "memory.max"
    limit.write_text("max\n")
    assert memory_mb(limit) == machine
    limit.write_text(f"{64 << 20}\n")
    assert memory_mb(limit) == 64
    limit.write_text(f"{1 << 60}\n")
    assert memory_mb(limit) == machine
