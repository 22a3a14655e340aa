"""Figures made of a query's progress, and where a checkpoint goes on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ottla.spark.progress import CheckpointError, description, next_offsets, offsets_behind


def source(**offsets: Any) -> dict[str, Any]:
    return {name: json.dumps(value) for name, value in offsets.items()}


def test_how_far_a_source_is_behind_by_the_connectors_names() -> None:
    found = source(
        endOffset={"a": {"0": 5, "1": 10}, "b": {"0": 3}},
        latestOffset={"a": {"0": 8, "1": 10}, "b": {"0": 3}},
    )
    assert offsets_behind(found) == {
        "minOffsetsBehindLatest": "0",
        "maxOffsetsBehindLatest": "3",
        "avgOffsetsBehindLatest": "1.0",
    }
    assert description(found) == "ottla[a, b]"


def test_what_is_not_known_is_nothing() -> None:
    assert offsets_behind({"endOffset": None, "latestOffset": None}) == {}
    assert offsets_behind(source(endOffset={"a": {"0": 5}})) == {}
    assert offsets_behind(source(endOffset={"a": {"0": 5}}, latestOffset={"b": {"0": 9}})) == {}
    assert offsets_behind({"endOffset": "12", "latestOffset": "13"}) == {}


def checkpoint(top: Path, finished: list[int], planned: dict[int, str]) -> Path:
    (top / "commits").mkdir()
    (top / "offsets").mkdir()
    for number in finished:
        (top / "commits" / str(number)).write_text('v1\n{"nextBatchWatermarkMs":0}')
        (top / "commits" / f".{number}.crc").write_text("x")
    for number, sources in planned.items():
        (top / "offsets" / str(number)).write_text(f"v1\n{{}}\n{sources}")
    return top


def test_a_checkpoint_goes_on_behind_the_last_batch_that_was_finished(tmp_path: Path) -> None:
    top = checkpoint(
        tmp_path,
        [8, 9, 10],
        {
            9: '{"a":{"0":1}}',
            10: '{"a":{"0":7}}\n{"b":{"0":2,"1":3}}',
            11: '{"a":{"0":9}}\n{"b":{"0":9,"1":9}}',
        },
    )
    assert next_offsets(top) == ['{"a":{"0":7}}', '{"b":{"0":2,"1":3}}']


@pytest.mark.parametrize(
    ("finished", "planned", "why"),
    [
        ([], {}, "has no finished micro-batch"),
        ([3], {}, "offsets/3 cannot be read: No such file"),
        ([3], {3: "17"}, r"source 0 is '17', which are no offsets of topics"),
    ],
)
def test_what_is_no_checkpoint_of_topics_is_one_line(
    tmp_path: Path, finished: list[int], planned: dict[int, str], why: str
) -> None:
    with pytest.raises(CheckpointError, match=why):
        next_offsets(checkpoint(tmp_path, finished, planned))


def test_another_directory_or_version_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="commits cannot be read: No such file"):
        next_offsets(tmp_path)
    top = checkpoint(tmp_path, [1], {})
    (top / "offsets" / "1").write_text("")
    with pytest.raises(CheckpointError, match="does not begin with v1"):
        next_offsets(top)
    (top / "offsets" / "1").write_bytes(b"v1\n\xff")
    with pytest.raises(CheckpointError, match="cannot be read"):
        next_offsets(top)
