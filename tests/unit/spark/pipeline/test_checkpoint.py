"""What checkpoints say, from files as Spark writes them: schemas of state, what fits, and whose a checkpoint is."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest
from tests.support.pipelines import write_pipeline

from ottla.spark.pipeline.checkpoints import checkpoint
from ottla.spark.pipeline.checkpoints.checkpoint import Family, Operator, Store
from ottla.spark.pipeline.declare import PipelineError
from ottla.spark.pipeline.load import Pipeline, load
from ottla.spark.progress import CheckpointError


def struct_of(**columns: Any) -> dict[str, Any]:
    """A schema in Spark's JSON; a type with `!` behind it is never null."""
    fields = [
        {
            "name": name,
            "type": kind.removesuffix("!") if isinstance(kind, str) else kind,
            "nullable": not str(kind).endswith("!"),
            "metadata": {},
        }
        for name, kind in columns.items()
    ]
    return {"type": "struct", "fields": fields}


def utf(text: str) -> bytes:
    return struct.pack(">H", len(text.encode())) + text.encode()


def chunks(document: Any) -> bytes:
    text = json.dumps(document)
    parts = [text[at : at + 40] for at in range(0, len(text), 40)]
    return struct.pack(">i", len(parts)) + b"".join(map(utf, parts))


KEY, VALUE = struct_of(n="integer"), struct_of(count="long")
V2 = utf("v2") + chunks(KEY) + chunks(VALUE)
V3 = (
    utf("v3")
    + struct.pack(">i", 2)
    + b"".join(
        utf(name) + b"\0\0" + chunks(KEY) + b"\0\0" + chunks(VALUE) + chunks({}) + chunks({})
        for name in ("a", "b")
    )
)


def write_checkpoint(
    path: Path,
    *,
    sources: tuple[Any, ...] = ({"orders": {"0": 3}},),
    schema: bytes | None = V2,
    batch: int = 1,
    committed: int | None = 1,
) -> Path:
    (path / "offsets").mkdir(parents=True)
    (path / "commits").mkdir()
    (path / "metadata").write_text('{"id":"7d4a1bb5-4f7e-4a59-b9b5-4b8e3c6a2e0d"}')
    head = json.dumps({"batchWatermarkMs": 0, "batchTimestampMs": 1_760_000_000_000, "conf": {}})
    lines = ["v1", head, *("-" if one is None else json.dumps(one) for one in sources)]
    (path / "offsets" / str(batch)).write_text("\n".join(lines))
    if committed is not None:
        (path / "commits" / str(committed)).write_text('v1\n{"nextBatchWatermarkMs":0}')
    if schema is not None:
        about = {
            "operatorInfo": {"operatorId": 0, "operatorName": "stateStoreSave"},
            "stateStoreInfo": [{"storeName": "default", "numColsPrefixKey": 0, "numPartitions": 2}],
        }
        place = path / "state" / "0" / "_metadata"
        place.mkdir(parents=True)
        (place / "metadata").write_text("v1\n" + json.dumps(about))
        place = path / "state" / "0" / "0" / "_metadata"
        place.mkdir(parents=True)
        (place / "schema").write_bytes(schema)
    return path


# ---- files ------------------------------------------------------------------------------------------------------


def test_a_checkpoint_is_read(tmp_path: Path) -> None:
    found = checkpoint.read(write_checkpoint(tmp_path / "c", batch=2))
    assert found is not None
    assert (found.batch, found.committed, found.is_complete) == (2, 1, False)
    assert found.topics == (frozenset({"orders"}),)
    assert found.operators == (
        Operator(0, "stateStoreSave", (Store("default", 2, (Family("", KEY, VALUE),)),)),
    )
    assert str(found.operators[0]) == "aggregation (operator 0)"
    assert checkpoint.read(tmp_path / "nowhere") is None


def test_each_version_of_schema_files_is_understood() -> None:
    v1 = utf("v1") + utf(json.dumps(KEY)) + utf(json.dumps(VALUE))
    for data in (v1, V2):
        assert list(checkpoint.schema_file(data)) == [Family("", KEY, VALUE)]
    assert list(checkpoint.schema_file(V3)) == [Family("a", KEY, VALUE), Family("b", KEY, VALUE)]


@pytest.mark.parametrize("data", [V2, V3], ids=["v2", "v3"])
def test_a_schema_file_that_was_cut_or_lies_is_refused(data: bytes, tmp_path: Path) -> None:
    for end in range(len(data)):
        with pytest.raises((CheckpointError, ValueError)):
            list(checkpoint.schema_file(data[:end]))
    for number in (-1, 2**31 - 1):
        with pytest.raises(CheckpointError, match="no number of pieces"):
            list(checkpoint.schema_file(utf("v2") + struct.pack(">i", number) + b"x" * 100))
    with pytest.raises(CheckpointError, match="version 'v9'"):
        list(checkpoint.schema_file(utf("v9")))
    with pytest.raises(CheckpointError, match=r"schema cannot be read: it ends too early"):
        checkpoint.read(write_checkpoint(tmp_path / "c", schema=data[:-1]))


@pytest.mark.parametrize("name", ["metadata", "offsets/1", "state/0/_metadata/metadata"])
@pytest.mark.parametrize("text", ["", "v1", "v1\n[]", "v1\n{", "\0\0"])
def test_files_that_are_not_sparks_are_one_line(name: str, text: str, tmp_path: Path) -> None:
    path = write_checkpoint(tmp_path / "c")
    (path / name).write_text(text)
    with pytest.raises(CheckpointError) as error:
        checkpoint.read(path)
    assert "\n" not in str(error.value)
    assert str(path) in str(error.value)


# ---- what fits --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("new", "fits"),
    [
        (struct_of(n="integer", s="string"), True),
        (struct_of(m="integer", t="string"), True),  # names do not count
        (struct_of(n="integer!", s="string"), True),
        (struct_of(n="long", s="string"), False),
        (struct_of(s="string", n="integer"), False),
        (struct_of(n="integer"), False),
        (struct_of(n="integer", s="string", more="long"), False),
    ],
)
def test_fits_as_spark_judges(new: Any, fits: bool) -> None:
    assert checkpoint.fits(new, struct_of(n="integer", s="string")) is fits


def test_nothing_may_become_null_that_could_not_be() -> None:
    assert not checkpoint.fits(struct_of(n="integer"), struct_of(n="integer!"))
    array = {"type": "array", "elementType": "long", "containsNull": True}
    none = {**array, "containsNull": False}
    assert checkpoint.fits(none, array)
    assert not checkpoint.fits(array, none)
    pairs = {"type": "map", "keyType": "string", "valueType": array, "valueContainsNull": True}
    assert checkpoint.fits({**pairs, "valueType": none}, pairs)
    assert not checkpoint.fits(pairs, {**pairs, "valueType": none})
    assert not checkpoint.fits(pairs, array)
    assert not checkpoint.fits("long", array)


def operator(name: str = "stateStoreSave", key: Any = KEY, value: Any = VALUE, number: int = 0) -> Operator:
    return Operator(number, name, (Store("default", 2, (Family("", key, value),)),))


def test_what_is_different_is_said_with_both_sides() -> None:
    assert checkpoint.differences([operator()], [operator()]) == []
    assert checkpoint.differences([operator()], [operator(value=struct_of(count="long", sum="double"))]) == [
        "aggregation (operator 0): its value was (count bigint) and is (count bigint, sum double) now"
    ]
    assert checkpoint.differences([operator()], []) == [
        "the state is of aggregation, and the code has no operator"
    ]
    assert checkpoint.differences([operator("dedupe")], [operator("dedupe", value=KEY)]) == []
    two = [operator("dedupe"), operator(number=1)]
    assert checkpoint.differences([operator()], two) == [
        "the state is of aggregation, and the code has dropDuplicates, aggregation"
    ]


def test_other_names_of_the_same_types_are_worth_a_word() -> None:
    assert checkpoint.renamed([operator()], [operator()]) == []
    assert checkpoint.renamed([operator()], [operator(value=struct_of(max="long"))]) == [
        "aggregation (operator 0): its value was (count bigint) and is (max bigint) now"
    ]


# ---- whose it is ------------------------------------------------------------------------------------------------


@pytest.fixture
def pipeline(tmp_path: Path) -> Pipeline:
    text = """
        @pipeline.stream(out=topic("out"), dead_letter="bad")
        def copy(rows=topic("orders", schema="n int"), names=topic("names", schema="k string", key="k", table=True)):
            return rows
        """
    return load(write_pipeline(tmp_path, text))


def test_a_checkpoint_is_claimed_once_and_refused_to_others(pipeline: Pipeline, tmp_path: Path) -> None:
    from dataclasses import replace

    root = tmp_path / "checkpoints"
    write_checkpoint(root / "copy")
    checkpoint.refuse_others(pipeline, str(root))
    checkpoint.claim(pipeline, str(root))
    assert checkpoint.owner_of(root / "copy") == ("p", "copy")
    checkpoint.refuse_others(pipeline, root.as_uri())
    other = replace(pipeline, name="q")
    with pytest.raises(
        PipelineError, match=r"is that of stream 'copy' of pipeline 'p'.*delete .*ottla.json"
    ) as error:
        checkpoint.refuse_others(other, str(root))
    assert len(str(error.value).splitlines()) == 1
    checkpoint.claim(other, str(root))
    assert checkpoint.owner_of(root / "copy") == ("p", "copy")
    # Of another stream, as when directories were mixed up.
    (root / "copy").rename(root / "copy.dead_letter")
    with pytest.raises(PipelineError, match="is that of stream 'copy' of pipeline 'p'"):
        checkpoint.refuse_others(pipeline, str(root))


def test_a_checkpoint_that_has_read_other_topics_is_refused(pipeline: Pipeline, tmp_path: Path) -> None:
    root = tmp_path / "checkpoints"
    write_checkpoint(root / "copy", sources=({"orders": {"0": 1}}, {"clicks": {"0": 1}}))
    with pytest.raises(PipelineError, match="has read clicks, and the stream reads orders: is it another's"):
        checkpoint.refuse_others(pipeline, str(root))
    assert not (root / "copy" / checkpoint.OWNER).exists()


@pytest.mark.parametrize("sources", [(None,), ({"offset": 1, "timestamp": 5},), ({"orders": {}},), ()])
def test_sources_without_topics_tell_nothing(
    sources: tuple[Any, ...], pipeline: Pipeline, tmp_path: Path
) -> None:
    write_checkpoint(tmp_path / "c" / "copy", sources=sources)
    checkpoint.refuse_others(pipeline, str(tmp_path / "c"))


def test_what_only_spark_reaches_is_left_to_it(pipeline: Pipeline) -> None:
    checkpoint.refuse_others(pipeline, "s3a://bucket/checkpoints")
    checkpoint.claim(pipeline, "hdfs://host/checkpoints")


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (("0", "1"), None),
        (("0", "1", "2"), None),  # the one that was begun
        (("0", "3"), "by whose numbers Spark would take new rows for written"),
        (("9.compact", "x"), "by whose numbers Spark would take new rows for written"),
        (("0",), "is not what this checkpoint has written"),
        ((), "is not what this checkpoint has written"),
    ],
)
def test_a_parquet_directory_of_another_life_would_lose_rows(
    names: tuple[str, ...], said: str | None, tmp_path: Path
) -> None:
    lake = tmp_path / "lake"
    (lake / "_spark_metadata").mkdir(parents=True)
    for name in names:
        (lake / "_spark_metadata" / name).touch()
    text = f"""
        @pipeline.stream(out=parquet({str(lake)!r}))
        def copy(rows=topic("orders", schema="n int")):
            return rows
        """
    made = load(write_pipeline(tmp_path, text))
    write_checkpoint(tmp_path / "c" / "copy", batch=2, committed=1)
    found = list(checkpoint.foreign(made, made.streams[0], str(tmp_path / "c")))
    assert (said is None) is (found == [])
    assert said is None or said in found[0]


def test_a_disk_that_does_not_take_the_note_is_no_reason_not_to_run(
    pipeline: Pipeline, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import os

    write_checkpoint(tmp_path / "c" / "copy")

    def full(fd: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    said = checkpoint.claim(pipeline, str(tmp_path / "c"))
    assert said is not None
    assert said.endswith("is not noted: No space left on device")
    assert not (tmp_path / "c" / "copy" / checkpoint.OWNER).exists()
