"""Changes of fields: what is told, once, and what is chance."""

from __future__ import annotations

import json
from typing import Any

from ottla.spark.pipeline.quality.changes import EXPECTED, MAX_TOLD, PREFIX, Changes, of_names
from ottla.spark.pipeline.running import Figures


def report(
    *counted: tuple[list[str], list[str], int], topic: str = "orders", batch: int = 0
) -> dict[str, Any]:
    """A micro-batch in which so many records had these fields more, and these less; and others not looked at."""
    entries = [{"item": of_names(new, missing), "count": count} for new, missing, count in counted]
    return {
        "batchId": batch,
        "durationMs": {"addBatch": 1},
        "observedMetrics": {
            "ottla_in_0": {"rows": 9, "bad": 0, PREFIX + topic: json.dumps([{"count": 700}, *entries])},
            "ottla_out_1": {"rows": 9},
            "theirs": {"rows": None, PREFIX + topic: 7},
        },
    }


def told(changes: Changes, *counted: tuple[list[str], list[str], int]) -> list[str]:
    changes.add(report(*counted))
    return changes.news()


def test_a_new_field_is_told_once() -> None:
    changes = Changes()
    assert told(changes, ([], [], 5)) == []
    assert told(changes, ([], [], 5), (["co'lor\n"], [], 1)) == [
        'orders: a new field "co\'lor\\n", which the schema lacks'
    ]
    assert told(changes, (["co'lor\n"], [], 50)) == []
    assert changes.document() == {"orders": {"new": ["co'lor\n"], "missing": []}}


def test_a_field_that_all_records_had_is_missed_soon_and_once() -> None:
    changes = Changes()
    assert told(changes, ([], [], 40)) == []
    assert told(changes, ([], ["price"], EXPECTED - 1)) == []
    assert told(changes, ([], ["price"], 1)) == [
        f"orders: the field 'price' went missing: none of the last {EXPECTED} records that were looked at has it"
    ]
    assert told(changes, ([], ["price"], 1000)) == []
    assert changes.document() == {"orders": {"new": [], "missing": ["price"]}}


def test_a_field_that_is_rare_or_never_was_there_is_not_missed() -> None:
    changes = Changes()
    assert told(changes, ([], ["never", "rare"], 9_900), ([], ["never"], 100)) == []
    # One in a hundred: it is no news that five hundred have none, and it is that a hundred thousand do not.
    assert told(changes, ([], ["never", "rare"], 500)) == []
    assert told(changes, ([], ["never"], 1), ([], ["never", "rare"], 400)) == []
    assert told(changes, ([], ["never", "rare"], 400)) == []
    (line,) = told(changes, ([], ["never", "rare"], 100_000))
    assert "the field 'rare' went missing" in line


def test_names_that_are_data_are_not_told_for_ever() -> None:
    changes = Changes()
    lines = told(changes, *(([f"user-{number}"], [], 1) for number in range(3 * MAX_TOLD)))
    assert len(lines) == MAX_TOLD + 1
    assert lines[-1].startswith(f"orders: more than {MAX_TOLD} new fields")
    assert told(changes, (["another"], [], 1)) == []
    assert len(changes.document()["orders"]["new"]) == MAX_TOLD


def test_figures_have_them_however_often_a_batch_is_reported() -> None:
    figures = Figures("s")
    first, second = report((["a"], [], 3)), report((["b"], [], 3), topic="returns", batch=1)
    figures.add([first], 0.0)
    figures.add([first, second], 1.0)
    assert figures.changes.topics["orders"].looked_at == 3
    assert figures.document()["schema_changes"] == {
        "orders": {"new": ["a"], "missing": []},
        "returns": {"new": ["b"], "missing": []},
    }


def test_endless_names_are_none() -> None:
    assert json.loads(of_names(["x" * 3000], ["y"])) == {"n": [], "m": ["y"]}


def test_people_see_them() -> None:
    from tests.unit.cli.pipeline.test_pipeline import RUN, STREAM

    from ottla.cli.pipeline.screen import status_lines

    changed = {"orders": {"new": ["color"], "missing": ["a", "b"]}, "returns": {"new": [], "missing": ["c"]}}
    shown = status_lines(RUN, {"streams": [{**STREAM, "schema_changes": changed}]})
    assert "  changed      per_minute: orders: 1 new field ('color'), 2 went missing ('a', 'b')" in shown
    assert "  changed      per_minute: returns: 1 went missing ('c')" in shown


def test_a_run_says_it_once_in_its_log() -> None:
    from tests.unit.spark.pipeline.run.test_supervised import World

    world = World()
    world.query.recentProgress.append(report((["color"], [], 1)))
    for second in range(3):
        world.look(float(second))
    world.query.recentProgress.append(report((["color"], [], 9), batch=1))
    world.look(3.0)
    assert world.said == ["copy: orders: a new field 'color', which the schema lacks"]
