"""`ottla.testing.pipelines`, as a user's tests use it."""

from __future__ import annotations

import shutil
import subprocess
import sys
import textwrap
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from ottla.spark import param, pipeline, topic
from ottla.testing.pipelines import Pipelines, pipelines

__all__ = ["pipelines"]  # the fixture; in a project conftest.py names the plugin
pytestmark = pytest.mark.xdist_group("spark")
PROJECT = Path(__file__).parents[3] / "examples" / "project"

CLICKS = topic("clicks", schema="page string, at timestamp", key="user", meta=True)
USERS = topic("users", schema="user string, country string", key="user", table=True)


@pipeline.view
def known(clicks: Any = CLICKS, users: Any = USERS) -> Any:
    return clicks.join(users, "user")


@pipeline.stream(out=topic("per_minute"))
def per_minute(known: Any = known, least: int = param(int, 0)) -> Any:
    from pyspark.sql.functions import window

    counted = known.withWatermark("at", "1 minute").groupBy(window("at", "1 minute"), "country").count()
    return counted.where(counted["count"] >= least).select("country", "count")


def click(user: str, minute: int) -> dict[str, Any]:
    return {"page": "/", "user": user, "at": datetime(2026, 11, 1, 12, minute, tzinfo=UTC)}


USER_ROWS = [{"user": "ada", "country": "GB"}, {"user": "bo", "country": "SE"}]


def test_rows_as_a_batch(pipelines: Pipelines) -> None:
    clicks = [click("ada", 0), click("ada", 0), click("bo", 1), click("eve", 1)]
    found = pipelines.batch(per_minute, clicks=clicks, users=USER_ROWS)
    assert sorted((row["country"], row["count"]) for row in found) == [("GB", 2), ("SE", 1)]
    (found,) = pipelines.batch(per_minute, clicks=clicks, users=USER_ROWS, least=2)
    assert found == {"country": "GB", "count": 2}
    assert len(pipelines.batch(known, clicks=clicks, users=USER_ROWS)) == 3


def test_micro_batches_and_what_the_watermark_drops(pipelines: Pipelines) -> None:
    late, closing = [click("ada", 0)], [click("bo", 9)]
    # Spark judges what is late by the watermark before the one by which it closes windows: so two of them.
    clicks = [[click("ada", 0)], closing, closing, late, []]
    found = pipelines.stream(per_minute, clicks=clicks, users=USER_ROWS)
    assert [(row["country"], row["count"]) for row in found] == [("GB", 1)], "the late one is not counted"


def test_a_whole_pipeline_with_a_broker(pipelines: Pipelines, tmp_path: Path) -> None:
    file = tmp_path / "copy.py"
    file.write_text(
        textwrap.dedent(
            """
            from ottla.spark import pipeline, topic

            @pipeline.stream(out=topic("out", key="n"), dead_letter="bad")
            def copy(rows=topic("in", schema="n int")):
                return rows.where("n > 1")
            """
        )
    )
    found = pipelines.run(file, {"in": [{"n": 1}, {"n": 2}, ("key", {"n": 3}), "no json", None]})
    assert sorted(record.json()["n"] for record in found["out"]) == [2, 3]
    assert [record.value for record in found["bad"]] == [b"no json"]
    assert "ottla.error.reason" in dict(found["bad"][0].headers)


def test_what_is_missing_or_unknown_is_named(pipelines: Pipelines) -> None:
    with pytest.raises(TypeError, match=r"known\(users\): there are no rows for it"):
        pipelines.batch(per_minute, clicks=[])
    with pytest.raises(TypeError, match="per_minute has no input clikcs; it has clicks, users"):
        pipelines.batch(per_minute, clicks=[], users=[], clikcs=[])
    with pytest.raises(TypeError, match="a stream is a list of micro-batches, each a list of rows"):
        pipelines.stream(per_minute, clicks=[click("ada", 0)], users=[])
    with pytest.raises(TypeError, match="nothing that a row can have"):
        pipelines.batch(known, clicks=[{"page": object()}], users=[])


def test_the_example_project_passes_its_tests(tmp_path: Path) -> None:
    shutil.copytree(PROJECT, tmp_path / "project", ignore=shutil.ignore_patterns("__pycache__"))
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist"],
        cwd=tmp_path / "project",
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "3 passed" in done.stdout
