"""What changes under load: a state that the code cannot go on with, and a reset, compared to a batch over the topic."""

from __future__ import annotations

import itertools
import json
import os
import re
import shlex
import signal
import threading
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.spark.pipeline.test_cli import Ottla, ottla, until
from tests.support.pipelines import consume, write_pipeline
from tests.support.spark_world import Broker

__all__ = ["ottla"]
pytestmark = [pytest.mark.long, pytest.mark.xdist_group("spark"), pytest.mark.timeout(1500)]


@contextmanager
def load_on(broker: Broker, topic: str) -> Iterator[None]:
    """Somebody keeps writing all the while."""
    enough = threading.Event()

    def write() -> None:
        for number in itertools.count():
            broker.produce(topic, [json.dumps({"n": number % 7, "id": number})])
            if enough.wait(0.2):
                return

    writer = threading.Thread(target=write)
    writer.start()
    try:
        yield
    finally:
        enough.set()
        writer.join(60)


def test_a_state_whose_schema_changes_is_carried_over_a_replay(
    ottla: Ottla, broker: Broker, tmp_path: Path
) -> None:
    source, target = broker.topic(2), broker.topic()
    text = """
        from pyspark.sql import functions as F

        @pipeline.stream(out=topic({target!r}, key="n"), mode="update")
        def counted(rows=topic({source!r}, schema="n int, id bigint")):
            return rows.groupBy("n").agg({what})
        """
    old, new = 'F.count("*").alias("times")', 'F.count("*").alias("times"), F.sum("id").alias("total")'
    file = write_pipeline(tmp_path, text.format(target=target, source=source, what=old), "counts")
    with load_on(broker, source):
        ottla.run(file, "--detach")
        until(lambda: ottla.status("counts")["streams"].get("counted", {}).get("rows_in", 0) > 20, ottla)
        write_pipeline(tmp_path, text.format(target=target, source=source, what=new), "counts")
        assert "counted: there is state of an earlier run; --plan compares it" in ottla("check", str(file))
        said = ottla("check", str(file), "--plan", "-b", broker.bootstrap, code=1)
        assert "its value was (count bigint) and is (count bigint, sum bigint) now" in said
        command = re.search(r"`ottla pipeline (replay [^`]*)`", said)
        assert command is not None
        # The commands are to be taken as they stand.
        words = shlex.split(command[1])
        assert words[-2:] == ["--state-dir", str(ottla.state)]
        ottla(*words[:-2])
        assert "copied to" in ottla("savepoint", "counts.replay", "--to", str(tmp_path / "saved"))
        ottla("stop", "counts")
        ottla("reset", "counts", "--stream", "counted", "-b", broker.bootstrap)
        write_pipeline(tmp_path, text.format(target=f"{target}.replay", source=source, what=new), "counts")
        ottla.run(file, "--available-now", "--from-savepoint", str(tmp_path / "saved"))
    shown = json.loads(ottla("check", str(file), "--plan", "--json", "-b", broker.bootstrap))
    assert shown["streams"][0]["fits"] is True
    ottla.run(file, "--available-now")
    written = [json.loads(record.value()) for record in consume(broker, f"{target}.replay")]
    times, totals = newest(written)
    batch = [json.loads(record.value()) for record in consume(broker, source)]
    assert times == Counter(row["n"] for row in batch)
    assert totals == {n: sum(row["id"] for row in batch if row["n"] == n) for n in totals}
    by_key = defaultdict(list)
    for row in written:
        by_key[row["n"]].append(row["times"])
    assert all(sorted(set(found)) == found for found in by_key.values()), "each change of a row is there once"


def newest(written: list[dict[str, int]]) -> tuple[dict[int, int], dict[int, int]]:
    """The last row of each key, as a compacted topic keeps it."""
    times, totals = {}, {}
    for row in written:
        times[row["n"]], totals[row["n"]] = row["times"], row["total"]
    return times, totals


def test_a_reset_under_load_leaves_what_was_visible_and_writes_each_row_once_more(
    ottla: Ottla, broker: Broker, tmp_path: Path
) -> None:
    source, target = broker.topic(2), broker.topic()
    file = write_pipeline(
        tmp_path,
        f"""
        @pipeline.stream(out=topic({target!r}))
        def copy(rows=topic({source!r}, schema="n int, id bigint", options={{"maxOffsetsPerTrigger": 100}})):
            return rows
        """,
        "copies",
    )
    with load_on(broker, source):
        ottla.run(file, "--detach")
        until(lambda: ottla.status("copies")["streams"].get("copy", {}).get("rows_out", 0) > 20, ottla)
        # In the middle of a micro-batch, as it comes: transactions are left open.
        os.kill(ottla.status("copies")["pid"], signal.SIGKILL)
        until(lambda: "died" in ottla("list"), ottla)
        assert "copy set aside in" in ottla("reset", "copies", "-b", broker.bootstrap)
        visible = ids(broker, target)
        assert visible
        assert max(visible.values()) == 1
        ottla.run(file, "--detach")
        until(lambda: ottla.status("copies")["streams"].get("copy", {}).get("rows_out", 0) > 20, ottla)
        ottla("stop", "copies")
    ottla.run(file, "--available-now")
    assert ids(broker, target) == visible + ids(broker, source)


def ids(broker: Broker, topic: str) -> Counter[int]:
    return Counter(json.loads(record.value())["id"] for record in consume(broker, topic))


def test_a_checkpoint_of_another_pipeline_ends_a_run_with_a_line(
    ottla: Ottla, broker: Broker, tmp_path: Path
) -> None:
    one, other, target = broker.topic(), broker.topic(), broker.topic()
    text = """
        @pipeline.stream(out=topic({target!r}))
        def copy(rows=topic({source!r}, schema="id bigint")):
            return rows
        """
    file = write_pipeline(tmp_path, text.format(source=one, target=target), "mine")
    broker.produce(one, ['{"id": 1}'])
    broker.produce(other, ['{"id": 2}'])
    ottla.run(file, "--available-now")
    checkpoints = ottla.state / "mine" / "checkpoints"
    said = ottla.run(file, "--available-now", "--name", "yours", "--checkpoint-dir", str(checkpoints), code=1)
    assert "is that of stream 'copy' of pipeline 'mine'" in said
    # Another file of the same name.
    write_pipeline(tmp_path, text.format(source=other, target=target), "mine")
    said = ottla.run(file, "--available-now", code=1)
    assert f"has read {one}, and the stream reads {other}" in said
    assert ids(broker, target) == {1: 1}
    write_pipeline(tmp_path, text.format(source=one, target=target), "mine")
    broker.produce(one, ['{"id": 3}'])
    ottla.run(file, "--available-now")
    assert ids(broker, target) == {1: 1, 3: 1}, "the checkpoint is as it was"
