"""A pipeline's file loaded and checked without Spark: every message names its place."""

from __future__ import annotations

import importlib.util
import sys
import textwrap
from pathlib import Path

import pytest

from ottla.spark.pipeline import Pipeline, PipelineError, load

HEADER = "from ottla.spark import delta, iceberg, parquet, pipeline, topic\n"
SCHEMA = "page string, at timestamp"
INPUT = f'topic("clicks", schema="{SCHEMA}")'


def written(tmp_path: Path, text: str, name: str = "clicks.py") -> Path:
    path = tmp_path / name
    path.write_text(HEADER + textwrap.dedent(text))
    return path


def problems(tmp_path: Path, text: str) -> list[str]:
    with pytest.raises(PipelineError) as caught:
        load(written(tmp_path, text))
    return [str(problem) for problem in caught.value.problems]


def stream(out: str = 'topic("out")', inputs: str = f"rows={INPUT}", more: str = "") -> str:
    return f"@pipeline.stream(out={out}{more})\ndef copy({inputs}):\n    return rows\n"


def test_a_file_becomes_a_pipeline(tmp_path: Path) -> None:
    pipeline = load(written(tmp_path, stream() + stream(out='parquet("lake")', more=', name="other"')))
    assert isinstance(pipeline, Pipeline)
    assert pipeline.name == "clicks"
    assert [s.name for s in pipeline.streams] == ["copy", "other"]
    assert pipeline.group_of(pipeline.streams[0]) == "clicks.copy"
    assert set(pipeline.topics()) == {"clicks", "out"}


def test_views_are_inputs_of_streams(tmp_path: Path) -> None:
    text = f"""
        @pipeline.view
        def fresh(rows={INPUT}):
            return rows

        @pipeline.stream(out=topic("a"))
        def one(fresh=fresh, spark=None):
            return fresh

        @pipeline.stream(out=topic("b"))
        def two(fresh=fresh):
            return fresh
        """
    pipeline = load(written(tmp_path, text))
    assert [[name for _, name, _ in pipeline.inputs(s)] for s in pipeline.streams] == [["rows"], ["rows"]]


def test_a_decorated_function_can_be_called_by_a_test(tmp_path: Path) -> None:
    (copy,) = load(written(tmp_path, stream())).streams
    assert copy(rows="a frame") == "a frame"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("def f(:\n    pass\n", "clicks.py:2:7: syntax error: invalid syntax"),
        ("x = 1\n", "clicks.py: declares no stream; mark a function with @pipeline.stream(out=...)"),
        ("undefined\n", "clicks.py:2: NameError: name 'undefined' is not defined"),
        ("import nowhere_to_be_found\n", "clicks.py:2: the package 'nowhere_to_be_found' is not installed"),
        (
            'topic("x", schma="a int")\n',
            "clicks.py:2: topic() has no parameter 'schma'; did you mean 'schema'?",
        ),
        (
            'delta("x", zzz=1)\n',
            "clicks.py:2: delta() has no parameter 'zzz'; it has path, key, order_by, delete,",
        ),
        (
            stream(more=', moed="append"'),
            "clicks.py:2: stream() has no parameter 'moed'; did you mean 'mode'?",
        ),
        (
            stream(inputs='rows=topic("clicks", schema="page strng")'),
            "clicks.py:2: copy(rows): schema, position 6: there is no type 'strng'; did you mean 'string'? "
            "in 'page strng'",
        ),
        (stream(inputs="rows"), "clicks.py:2: copy(rows): has no source; write rows=topic(...)"),
        (stream(inputs="rows=7"), "clicks.py:2: copy(rows): takes a topic, a table or a view, not int 7"),
        (
            stream(out="'out'"),
            "clicks.py:2: copy(out): takes topic(), parquet(), delta() or iceberg(), not str 'out'",
        ),
        (
            stream(more=', mode="apend"'),
            "clicks.py:2: copy(mode): 'apend' is none of append, update, complete; did",
        ),
        (stream(more=', trigger="often"'), "clicks.py:2: copy(trigger): 'often' is neither an interval"),
        (
            stream(more=', name="a/b"'),
            "clicks.py:2: copy(name): 'a/b': letters, digits, '.', '_' and '-' only",
        ),
        (stream(out='topic("a b")'), "clicks.py:2: copy(out): 'a b' is no name for a topic"),
        (
            stream(out='topic("o", format="jsn")'),
            "clicks.py:2: copy(out): format: 'jsn' is none of json, avro,",
        ),
        (
            stream(out='topic("o", partitions=0)'),
            "clicks.py:2: copy(out): partitions: 0 is no number of partitions",
        ),
        (
            stream(inputs='rows=topic("clicks", format="json")'),
            "clicks.py:2: copy(rows): format='json' needs a schema, e.g.",
        ),
        (
            stream(inputs='rows=topic("clicks", schema=3)'),
            "clicks.py:2: copy(rows): schema: takes a schema string or a StructType, not int",
        ),
        (
            stream(inputs=f'rows=topic("clicks", schema="{SCHEMA}", table=True)'),
            "clicks.py:2: copy: reads no topic: a stream needs at least one (table=True is none)",
        ),
        (
            stream(inputs='rows=topic("clicks", schema="a int", key=("a", "b"))'),
            "clicks.py:2: copy(rows): key: an input has one column for the key, not a, b",
        ),
        (
            stream(inputs='rows=topic("clicks", meta=True)'),
            "clicks.py:2: copy(rows): key, headers, meta and table need a format;",
        ),
        (
            stream(inputs='rows=topic("clicks", schema="a int", on_error="ignore")'),
            "clicks.py:2: copy(rows): on_error: 'ignore' is none of fail, skip",
        ),
        (
            stream(more=', dead_letter=topic("bad", schema="a int")'),
            "clicks.py:2: copy(dead_letter): holds the records as they came",
        ),
        (
            stream(more=', dead_letter=parquet("x")'),
            "clicks.py:2: copy(dead_letter): takes a topic, not Parquet",
        ),
        (
            stream(out='parquet("lake")', more=', mode="update"'),
            "clicks.py:2: copy(out): a Parquet directory is only appended to",
        ),
        (
            stream(out='delta("lake")', more=', mode="update"'),
            "clicks.py:2: copy(out): mode='update' gives a row",
        ),
        (
            stream(out='delta("lake", partition_by="day(at)")'),
            "clicks.py:2: copy(out): partition_by: 'day(at)': Delta is partitioned by columns; make one in the result",
        ),
        (
            stream(out='iceberg("a.b", warehouse="w", partition_by="dya(at)")'),
            "clicks.py:2: copy(out): partition_by: 'dya(at)': there is no transform 'dya'; there are year, month, "
            "day, hour, bucket, truncate; did you mean 'day'?",
        ),
        (
            stream(out='delta("lake", evolve="all")'),
            "clicks.py:2: copy(out): evolve: 'all' is none of additive",
        ),
        (
            stream(out='delta("lake", compact="hourly")'),
            "clicks.py:2: copy(out): compact: 'hourly' is no interval: '1 hour' is",
        ),
        (
            stream(out='delta("lake", target_file_size="huge")'),
            "clicks.py:2: copy(out): target_file_size: 'huge' is no size of files: '128MB' is, from 1KB to 8GB",
        ),
        (
            stream(out='delta("lake", delete="gone")'),
            "clicks.py:2: copy(out): delete and order_by are about rows",
        ),
        (
            stream(out='delta("lake", key="id")'),
            "clicks.py:2: copy(out): order_by: says which of several rows",
        ),
        (
            stream(more=', dead_letter="bad"')
            + stream(more=', name="copy.dead_letter"').replace("def copy", "def other"),
            "clicks.py:2: copy(dead_letter): its dead letters have the name of the stream 'copy.dead_letter', and its "
            "checkpoint",
        ),
        (
            stream(out='parquet("/lake/x")')
            + stream(out='parquet("file:/lake/x/")', more=', name="other"').replace("def copy", "def other"),
            "clicks.py:5: other(out): parquet 'file:/lake/x/' is what 'copy' writes into: Spark knows what is there by",
        ),
        (
            stream(out='delta("/lake/50%/x")'),
            "clicks.py:2: copy(out): path: '/lake/50%/x' has a '%' in it, which tables of a lake cannot have: "
            "name another directory",
        ),
        (
            stream(out='iceberg("a.b", warehouse="/lake/#1")'),
            "clicks.py:2: copy(out): warehouse: '/lake/#1' has a '#' in it, which tables of a lake cannot have: "
            "name another directory",
        ),
        (
            stream(out='iceberg("events", warehouse="w")'),
            "clicks.py:2: copy(out): 'events' is no table: namespace",
        ),
        (
            stream(out='iceberg("a.events")'),
            "clicks.py:2: copy(out): needs warehouse= (a directory) or catalog=",
        ),
        (
            stream(inputs='rows=topic("clicks", schema="n int", start="erliest")'),
            "clicks.py:2: copy(rows): start: 'erliest' is neither 'earliest' nor 'latest' nor a time like "
            "'2026-11-01T00:00'; did you mean 'earliest'?",
        ),
        (
            stream(inputs='rows=topic("clicks", schema="n int", start="1969-01-01")'),
            "clicks.py:2: copy(rows): start: '1969-01-01' is before 1970",
        ),
        (stream() * 2, "clicks.py:5: copy(name): there are two streams named 'copy'"),
        (
            stream(out='topic("clicks")'),
            "clicks.py: the pipeline feeds itself: stream copy -> topic clicks -> stream copy",
        ),
        (
            stream(more=', dead_letter="clicks"'),
            "clicks.py: the pipeline feeds itself: stream copy -> topic clicks -> stream copy",
        ),
        (
            stream() + "@pipeline.stream(out=topic('x'))\ndef next(rows=copy):\n    return rows\n",
            "clicks.py:5: next(rows): 'copy' is a stream, not a view; read what it writes: topic('out')",
        ),
    ],
)
def test_what_is_wrong_is_said_with_its_place(tmp_path: Path, text: str, expected: str) -> None:
    found = problems(tmp_path, text)
    assert any(problem.startswith(expected) for problem in found), found


@pytest.mark.parametrize(
    ("out", "package"), [('delta("x")', "deltalake"), ('iceberg("a.b", warehouse="w")', "pyiceberg")]
)
def test_a_package_that_is_missing_is_said_before_spark_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, out: str, package: str
) -> None:
    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == package else real(name))
    assert problems(tmp_path, stream(out=out)) == [
        f"clicks.py:2: copy(out): needs the package {package}: pip install '.[lake]' in Ottla's checkout"
    ]


def test_everything_that_is_wrong_is_said_at_once(tmp_path: Path) -> None:
    found = problems(
        tmp_path, stream(out='topic("o o")', inputs='rows=topic("clicks", schema="a in")', more=', mode="x"')
    )
    assert len(found) == 3


def test_a_cycle_through_two_streams_is_told_whole(tmp_path: Path) -> None:
    text = """
        @pipeline.stream(out=topic("b"))
        def one(rows=topic("a", schema="n int")):
            return rows

        @pipeline.stream(out=topic("a"))
        def two(rows=topic("b", schema="n int")):
            return rows
        """
    assert problems(tmp_path, text) == [
        "clicks.py: the pipeline feeds itself: stream one -> topic b -> stream two -> topic a -> stream one"
    ]


def test_a_view_made_of_itself_is_refused(tmp_path: Path) -> None:
    text = f"""
        @pipeline.view
        def fresh(rows={INPUT}):
            return rows

        fresh.function.__defaults__ = (fresh,)

        @pipeline.stream(out=topic("a"))
        def one(fresh=fresh):
            return fresh
        """
    assert any("view 'fresh' is made of itself" in problem for problem in problems(tmp_path, text))


@pytest.mark.parametrize(
    ("path", "words"), [("nothing.py", "there is no such file"), (".", "this is a directory, not a file")]
)
def test_a_file_that_is_none(tmp_path: Path, path: str, words: str) -> None:
    with pytest.raises(PipelineError, match=words):
        load(tmp_path / path)


def test_a_file_that_is_no_text(tmp_path: Path) -> None:
    (tmp_path / "bytes.py").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(PipelineError, match=r"bytes.py"):
        load(tmp_path / "bytes.py")


def test_a_module_can_be_named_instead_of_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "shop_pipes").mkdir()
    (tmp_path / "shop_pipes" / "__init__.py").write_text("")
    written(tmp_path / "shop_pipes", stream(), "orders.py")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert load("shop_pipes.orders").name == "orders"
    with pytest.raises(PipelineError, match="there is no such file"):
        load("shop_pipes.nothing")


def test_a_pipeline_imports_what_is_beside_it_and_leaves_the_path_alone(tmp_path: Path) -> None:
    (tmp_path / "beside_it_all.py").write_text("NAME = 'out'\n")
    before = list(sys.path)
    load(written(tmp_path, "from beside_it_all import NAME\n" + stream(out="topic(NAME)")))
    assert sys.path == before
    del sys.modules["beside_it_all"]


def test_functions_and_classes_of_the_file_travel_by_value(tmp_path: Path) -> None:
    from pyspark import cloudpickle

    text = "class Fraud:\n    limit = 3\n" + stream()
    pipeline = load(written(tmp_path, text))
    fraud = pipeline.streams[0].function.__globals__["Fraud"]
    data = cloudpickle.dumps(fraud)
    module = sys.modules.pop(fraud.__module__)
    try:
        assert cloudpickle.loads(data).limit == 3
    finally:
        sys.modules[fraud.__module__] = module
