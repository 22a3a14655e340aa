"""The pipelines that ship, without Spark: every file is fine, alone and under another name; samples are repeatable."""

from __future__ import annotations

import ast
import json
import sys
from pathlib import Path

import pytest

from ottla.cli.main import main
from ottla.examples import PIPELINES, samples, source_of

pytest.importorskip("pyspark")

from ottla.spark.pipeline import load


@pytest.mark.parametrize("name", PIPELINES)
def test_a_copy_is_fine_and_declares_what_the_original_does(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["pipeline", "new", f"my-{name}", "--template", name]) in (0, None)
    copy, original = load(tmp_path / f"my-{name}.py"), load(f"ottla.examples.{name}")
    assert copy.name == f"my-{name}"
    assert [stream.name for stream in copy.streams] == [stream.name for stream in original.streams]
    assert copy.topics().keys() == original.topics().keys()
    assert f"ottla pipeline run my-{name}.py" in copy.path.read_text()


@pytest.mark.parametrize("name", PIPELINES)
def test_a_copy_runs_without_this_package_s_other_files(name: str) -> None:
    imported = set()
    for node in ast.walk(ast.parse(source_of(name))):
        if isinstance(node, ast.ImportFrom):
            imported.add(node.module)
        elif isinstance(node, ast.Import):
            imported |= {alias.name for alias in node.names}
    own = {module for module in imported if module and module.startswith("ottla")}
    others = {module.partition(".")[0] for module in imported - own if module}
    assert own == {"ottla.spark"}
    assert others <= {"pyspark", *sys.stdlib_module_names}


@pytest.mark.parametrize("name", PIPELINES)
def test_every_topic_is_made_if_it_is_missing_and_the_inputs_have_samples(name: str) -> None:
    pipeline = load(f"ottla.examples.{name}")
    uses = pipeline.topics()
    assert all(any(topic.partitions for _, _, topic in used) for used in uses.values())
    read = {topic for topic, used in uses.items() if any(p not in ("out", "dead_letter") for _, p, _ in used)}
    assert samples.FEEDS[name].keys() == read


@pytest.mark.parametrize("name", PIPELINES)
def test_samples_are_the_same_for_the_same_seed_and_move_with_their_start(name: str) -> None:
    for feed in samples.FEEDS[name].values():
        first = list(feed(50, 7))
        assert first == list(feed(50, 7))
        assert first != list(feed(50, 8))
        later = list(feed(50, 7, samples.START_MS + 1000))
        assert [sample.timestamp_ms + 1000 for sample in first] == [sample.timestamp_ms for sample in later]
        assert [sample.key for sample in first] == [sample.key for sample in later]


def test_sample_changes_are_debezium_s_with_and_without_the_envelope() -> None:
    told = [json.loads(sample.value) for sample in samples.changes(200) if sample.value is not None]
    assert {"payload" in change for change in told} == {True, False}
    inner = [change.get("payload", change) for change in told]
    assert {change["op"] for change in inner} == {"c", "u", "d"}
    assert all({"before", "after", "source", "op", "ts_ms"} == change.keys() for change in inner)
