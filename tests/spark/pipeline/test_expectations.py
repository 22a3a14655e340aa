"""Expectations on a real Spark: rows left out, set aside once, or stopping the stream; and what Spark refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.support.pipelines import consume, figures_of, pipeline_of
from tests.support.spark_world import Broker

from ottla.spark.pipeline import PipelineError
from ottla.spark.pipeline.quality.expectations import observed

pytestmark = pytest.mark.xdist_group("spark")

HEADER = "from ottla.spark import expect\n"


def run_of(tmp_path: Path, text: str, name: str = "p") -> Any:
    import textwrap

    return pipeline_of(tmp_path, HEADER + textwrap.dedent(text), name)


def values(broker: Broker, topic: str) -> list[Any]:
    return [json.loads(record.value()) for record in consume(broker, topic)]


def letters(broker: Broker, topic: str) -> list[tuple[bytes | None, str, dict[str, str]]]:
    """Values, reasons, and all headers, in order."""
    found = []
    for record in consume(broker, topic):
        headers = {name: data.decode() for name, data in record.headers()}
        found.append((record.value(), headers["ottla.error.reason"], headers))
    return found


def test_rows_of_inputs_are_left_out_or_set_aside_each_once_and_counted(
    spark: Any, broker: Broker, tmp_path: Path
) -> None:
    source, target, bad = broker.topic(), broker.topic(), broker.topic()
    run = run_of(
        tmp_path,
        f"""
        @pipeline.stream(out=topic({target!r}, key="k"), dead_letter={bad!r})
        def copy(rows=topic({source!r}, schema="price double, n int", key="k", tombstones="keep", expect=[
            expect("n is not null", action="drop", name="has n"),
            expect("price > 0", action="dead_letter", name="it's positive"),
            expect("n < 100", action="dead_letter"),
        ])):
            return rows
        """,
    )
    broker.produce(
        source,
        [
            '{"price": 1, "n": 1}',
            '{"price": -1, "n": 2}',
            '{"price": -1}',
            '{"n": 4}',
            '{"price": 1, "n": 200}',
            "oops",
            None,
        ],
        key="k",
        headers={"trace": b"7"},
    )
    queries = run(spark, broker)
    assert [row.get("n") for row in values(broker, target)] == [1, None], "a tombstone is let through"
    copy = next(query for query in queries if query.name == "p.copy")
    assert observed(copy.lastProgress) == {"has n": 1, "it's positive": 2, "n < 100": 1}
    assert figures_of(queries) == {"p.copy": (2, 0), "p.copy.dead_letter": (0, 4)}
    found = letters(broker, bad)
    assert sorted((headers["ottla.error.offset"], reason) for _, reason, headers in found) == [
        ("1", 'the expectation "it\'s positive" is not met: price > 0'),
        ("3", 'the expectation "it\'s positive" is not met: price > 0'),
        ("4", "the expectation 'n < 100' is not met"),
        ("5", "the value is not JSON: Expecting value: line 1 column 1 (char 0)"),
    ]
    value, _, headers = next(one for one in found if one[2]["ottla.error.offset"] == "1")
    assert value == b'{"price": -1, "n": 2}'
    assert (headers["trace"], headers["ottla.error.stream"]) == ("7", "p.copy")
    assert (headers["ottla.error.topic"], headers["ottla.error.partition"]) == (source, "0")
    broker.produce(source, ['{"price": 0, "n": 1}', '{"price": 3, "n": 3}'])
    queries = run(spark, broker)
    assert [row.get("n") for row in values(broker, target)] == [1, None, 3]
    assert len(letters(broker, bad)) == 5
    assert figures_of(queries) == {"p.copy": (1, 0), "p.copy.dead_letter": (0, 1)}


def test_rows_of_a_result_go_to_the_dead_letters_in_the_same_query(
    spark: Any, broker: Broker, tmp_path: Path
) -> None:
    source, target, raw, bad = (broker.topic() for _ in range(4))
    run = run_of(
        tmp_path,
        f"""
        checks = [expect("total >= 0", "dead_letter", name="owed"), expect("total < 100", "drop")]

        @pipeline.stream(out=topic({target!r}, key="id"), dead_letter={bad!r}, expect=checks)
        def totals(rows=topic({source!r}, schema="id string, a int, b int")):
            return rows.selectExpr("id", "a + b as total")

        @pipeline.stream(
            out=topic({raw!r}, format="raw"), dead_letter={bad!r}, expect=expect("length(value) < 40", "dead_letter")
        )
        def copy(rows=topic({source!r}, expect=[expect("partition = 0", "dead_letter")])):
            return rows.select("key", "value")
        """,
    )
    long = '{"id": "z", "a": 9, "b": 100,           "c": 0}'
    broker.produce(source, ['{"id": "x", "a": 1, "b": 2}', '{"id": "y", "a": 1, "b": -2}', long], key="k")
    queries = run(spark, broker)
    assert values(broker, target) == [{"id": "x", "total": 3}]
    assert [record.value().decode() for record in consume(broker, raw)] == [
        '{"id": "x", "a": 1, "b": 2}',
        '{"id": "y", "a": 1, "b": -2}',
    ]
    found = {
        headers["ottla.error.stream"]: (value, reason, headers)
        for value, reason, headers in letters(broker, bad)
    }
    assert len(letters(broker, bad)) == 2
    value, reason, headers = found["p.totals"]
    assert value is not None
    assert json.loads(value) == {"id": "y", "total": -1}
    assert reason == "the expectation 'owed' is not met: total >= 0"
    assert headers["ottla.error.topic"] == target
    assert found["p.copy"][:2] == (long.encode(), "the expectation 'length(value) < 40' is not met")
    totals = next(query for query in queries if query.name == "p.totals")
    assert observed(totals.lastProgress) == {"owed": 1, "total < 100": 1}
    assert figures_of(queries) == {
        "p.totals": (1, 1),
        "p.totals.dead_letter": (0, 0),
        "p.copy": (2, 1),
        "p.copy.dead_letter": (0, 0),
    }


def test_each_dead_letter_is_counted_once_whatever_the_reason_and_as_nothing_else(
    spark: Any, broker: Broker, tmp_path: Path
) -> None:
    source, target, bad = broker.topic(), broker.topic(), broker.topic()
    run = run_of(
        tmp_path,
        f"""
        fields = [{{"name": "id", "type": "long"}}, {{"name": "who", "type": "string"}}]
        out = topic({target!r}, format="avro", schema={{"type": "record", "name": "R", "fields": fields}})

        @pipeline.stream(out=out, dead_letter={bad!r}, expect=expect("id < 100", "dead_letter"))
        def copy(rows=topic({source!r}, schema="id bigint, who string", expect=[
            expect("id != 9", "drop"), expect("id > 0", "dead_letter")
        ])):
            return rows
        """,
    )
    reasons = {
        '{"id": 1, "who": "ada"}': "",
        '{"id": 2, "who": "bob"}': "",
        '{"id": 9, "who": "eve"}': "",  # left out
        "oops": "the value is not JSON: Expecting value: line 1 column 1 (char 0)",
        '{"id": -1, "who": "ada"}': "the expectation 'id > 0' is not met",
        '{"id": 100, "who": "ada"}': "the expectation 'id < 100' is not met",
        '{"id": 3}': "cannot be written: ",
        '{"id": 101}': "the expectation 'id < 100' is not met",  # nor can it be written
        '{"id": -2}': "the expectation 'id > 0' is not met",  # nor would it be written
    }
    broker.produce(source, list(reasons))
    queries = run(spark, broker)
    found = sorted(reason for _, reason, _ in letters(broker, bad))
    expected = sorted(filter(None, reasons.values()))
    assert all(one.startswith(other) for one, other in zip(found, expected, strict=True)), found
    assert len(consume(broker, target)) == 2
    assert figures_of(queries) == {"p.copy": (2, 3), "p.copy.dead_letter": (0, 3)}


def test_one_that_stops_the_stream_says_which_and_where(spark: Any, broker: Broker, tmp_path: Path) -> None:
    source, target = broker.topic(), broker.topic()
    broker.produce(source, ['{"n": 1}', '{"n": null}'])
    text = """
        @pipeline.stream(out=topic({target!r}){result})
        def copy(rows=topic({source!r}, schema="n int"{input})):
            return rows
        """
    clause = ', expect=[expect("n > 0", name="positive")]'
    of_input = run_of(tmp_path, text.format(source=source, target=target, input=clause, result=""), "one")
    with pytest.raises(
        Exception, match=f"{source}-0 at offset 1: the expectation 'positive' is not met: n > 0"
    ):
        of_input(spark, broker)
    of_result = run_of(tmp_path, text.format(source=source, target=target, input="", result=clause), "two")
    with pytest.raises(Exception, match="a row of the result: the expectation 'positive' is not met: n > 0"):
        of_result(spark, broker)
    assert consume(broker, target) == []


def test_what_spark_does_not_understand_is_told_before_a_query_starts(
    spark: Any, broker: Broker, tmp_path: Path
) -> None:
    source, target = broker.topic(), broker.topic()
    run = run_of(
        tmp_path,
        f"""
        @pipeline.stream(out=topic({target!r}), expect=expect("sum(n) > 0", "drop"))
        def result(rows=topic({source!r}, schema="n int")):
            return rows

        @pipeline.stream(out=topic({target!r}))
        def copy(rows=topic({source!r}, schema="n int", expect=[
            expect("n >", name="unfinished"), expect("m > 0", "drop"), expect("n + 1", "drop"), expect("n > 0")
        ])):
            return rows
        """,
    )
    with pytest.raises(PipelineError) as caught:
        run(spark, broker)
    of_result, unfinished, unknown, number = map(str, caught.value.problems)
    assert of_result.startswith(
        "p.py:4: result(expect): expect('sum(n) > 0'): Spark refuses it: [INVALID_WHERE"
    )
    assert unfinished.startswith(
        "p.py:8: copy(rows): expect('unfinished'): Spark refuses it: [PARSE_SYNTAX_ERROR]"
    )
    assert "`m` cannot be resolved" in unknown
    assert unknown.startswith("p.py:8: copy(rows): expect('m > 0'): Spark refuses it: [UNRESOLVED_COLUMN")
    assert "boolean" in number.lower()
    assert all("\n" not in str(problem) for problem in caught.value.problems)
