"""Expectations without Spark: what a file may say, and how what they counted is shown."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

import pytest

from ottla.cli.pipeline.screen import expectation_lines, status_lines
from ottla.spark.pipeline import PipelineError, load
from ottla.spark.pipeline.quality.expectations import Expect, expect, observed
from ottla.spark.pipeline.run.runner import figures_line
from ottla.spark.pipeline.run.state import RUNNING, Run
from ottla.spark.pipeline.running import Figures

HEADER = "from ottla.spark import delta, expect, pipeline, topic\n"


def stream(
    expected: str = "", *, of_result: str = "", out: str = 'topic("out")', more: str = "", table: str = ""
) -> str:
    result = f", expect={of_result}" if of_result else ""
    inputs = f'rows=topic("in", schema="n int"{", expect=" + expected if expected else ""})'
    return f"@pipeline.stream(out={out}{result}{more})\ndef copy({inputs}{table}):\n    return rows\n"


def problems(tmp_path: Path, text: str) -> list[str]:
    path = tmp_path / "p.py"
    path.write_text(HEADER + textwrap.dedent(text))
    with pytest.raises(PipelineError) as caught:
        load(path)
    return [str(problem) for problem in caught.value.problems]


def test_a_file_may_expect_things_of_inputs_and_results(tmp_path: Path) -> None:
    path = tmp_path / "p.py"
    path.write_text(
        HEADER
        + stream(
            'expect("n > 0", "drop", name="positive")',
            of_result='[expect("n < 9"), expect("n <> 5", action="dead_letter")]',
            more=', dead_letter="bad"',
        )
    )
    (copy,) = load(path).streams
    (_, _, source), *_ = load(path).inputs(copy)
    assert source.expect == (Expect("n > 0", "drop", "positive"),)  # type: ignore[union-attr]
    assert [one.action for one in copy.expect] == ["fail", "dead_letter"]
    assert copy.expect[0].reason == "the expectation 'n < 9' is not met"
    assert expect("n > 0", name="positive").reason == "the expectation 'positive' is not met: n > 0"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            stream('[expect("n > 0", action="dead_leter")]'),
            "p.py:2: copy(rows): expect('n > 0'): action: 'dead_leter' is none of drop, dead_letter, fail; did you "
            "mean 'dead_letter'?",
        ),
        (
            stream('[expect("n > 0", action="dead_letter", name="positive")]'),
            "p.py:2: copy(rows): expect('positive'): action='dead_letter' needs a topic for it: "
            "@pipeline.stream(dead_letter=...)",
        ),
        (
            stream(of_result='[expect("n > 0", action="dead_letter")]'),
            "p.py:2: copy(expect): expect('n > 0'): action='dead_letter' needs a topic for it:",
        ),
        (
            stream(
                of_result='[expect("n > 0", "dead_letter")]', out='delta("d")', more=', dead_letter="bad"'
            ),
            "p.py:2: copy(expect): action='dead_letter' of a result needs out=topic(...)",
        ),
        (stream('["n > 0"]'), "p.py:2: copy(rows): expect: takes expect(...), not str 'n > 0'"),
        (stream('"n > 0"'), "p.py:2: copy(rows): expect: takes a list of expect(...), not str 'n > 0'"),
        (stream("[expect(' ')]"), "p.py:2: copy(rows): expect: ' ' is no condition: text in Spark's SQL is"),
        (stream("[expect(5)]"), "p.py:2: copy(rows): expect: 5 is no condition"),
        (stream('[expect("n", name="a\\nb")]'), "p.py:2: copy(rows): expect('n'): 'a\\nb' is no name"),
        (stream('[expect("n" * 300)]'), "p.py:2: copy(rows): expect('nnnn"),
        (
            stream('[expect("n > 0"), expect("n > 0", "drop")]'),
            "p.py:2: copy(rows): expect: there are two named",
        ),
        (stream('[expect("n > 0")] * 101'), "p.py:2: copy(rows): expect: 101 are too many"),
        (
            stream(out='topic("out", expect=[expect("n > 0")])'),
            "p.py:2: copy(out): expect: is for an input; for the result there is @pipeline.stream(expect=[...])",
        ),
        (
            stream(
                more=', dead_letter="bad"',
                table=', t=topic("t", schema="a int", key="k", table=True, expect=[expect("a > 0", "dead_letter")])',
            ),
            "p.py:2: copy(t): expect: a table is read again and again, and its rows cannot be dead letters",
        ),
        (
            stream('[expect("at < Now( )", "dead_letter")]', more=', dead_letter="bad"'),
            "p.py:2: copy(rows): expect('at < Now( )'): 'Now' is another one each time",
        ),
        (
            stream('[expect("n > 0", actoin="drop")]'),
            "p.py:3: expect() has no parameter 'actoin'; did you mean",
        ),
    ],
)
def test_what_is_wrong_is_said_with_its_place(tmp_path: Path, text: str, expected: str) -> None:
    found = problems(tmp_path, text)
    assert any(problem.startswith(expected) for problem in found), found


class Row:
    """As PySpark gives observed metrics."""

    def __init__(self, **columns: int | None) -> None:
        self._columns = columns

    def asDict(self) -> dict[str, Any]:
        return self._columns


def test_counts_are_added_up_by_name_and_shown() -> None:
    figures = Figures("copy")
    for batch in (0, 1):
        report = {
            "batchId": batch,
            "durationMs": {"addBatch": 1, "triggerExecution": 2},
            "observedMetrics": {
                "ottla_in_0": Row(rows=5, bad=0),
                "ottla_expect_1": Row(positive=2, even=None),
                "ottla_expect_2": {"positive": 1},
            },
        }
        assert observed(report) == {"positive": 3, "even": 0}
        figures.add([report], float(batch))
    document = figures.document()
    assert document["expectations"] == {"positive": 6, "even": 0}
    assert ", 6 not 'positive'," in figures_line(figures)
    assert "even" not in figures_line(figures)
    progress = {"streams": [document]}
    assert expectation_lines(progress) == [
        "copy: 'positive' was not met by 6 rows",
        "copy: 'even' was not met by 0 rows",
    ]
    run = Run("p", "/p.py", "b:1", "local", RUNNING, 1, 1)
    assert "  expectation  copy: 'positive' was not met by 6 rows" in status_lines(run, progress)
