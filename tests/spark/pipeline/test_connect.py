"""A pipeline on a Spark Connect server: no Java on this side; the client dies, and the server, which a run outlives.
Long tests: each has a Spark of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.interop.ottla_node import OTTLA
from tests.interop.process import wait_until
from tests.support.connect_server import ConnectServer
from tests.support.pipelines import consume, write_pipeline
from tests.support.shipped import shipped
from tests.support.six import prepare
from tests.support.spark_world import Broker
from tests.support.stricken import Stricken, die_and_check

from ottla.spark.pipeline.run.state import Home

pytestmark = [
    pytest.mark.long,
    pytest.mark.xdist_group("spark"),
    pytest.mark.timeout(900),
]


@pytest.fixture
def connect_server(tmp_path: Path) -> Iterator[ConnectServer]:
    """On this machine, with Ottla installed."""
    from ottla.spark.worker_python import worker_python

    environment = {**os.environ, "PYSPARK_PYTHON": worker_python(sys.executable, os.environ)}
    settings = {"spark.driver.memory": "768m", "spark.sql.shuffle.partitions": "1"}
    with ConnectServer(tmp_path, "local[2]", environment, settings) as server:
        yield server


def test_topics_in_each_mode_dead_letters_and_a_lake(
    broker: Broker, tmp_path: Path, connect_server: ConnectServer
) -> None:
    from ottla.spark.pipeline.declare import delta
    from ottla.spark.pipeline.lake.delta import read_table

    source, target, bad, counts = (broker.topic() for _ in range(4))
    lake = tmp_path / "lake"
    skipping = f"topic({source!r}, schema='page string NOT NULL, n int', on_error='skip')"
    file = write_pipeline(
        tmp_path,
        f"""
        from ottla.spark import expect

        @pipeline.stream(out=topic({target!r}, key="page"), dead_letter={bad!r})
        def copy(rows=topic({source!r}, schema="page string NOT NULL, n int")):
            return rows

        @pipeline.stream(out=topic({counts!r}, key="page"), mode="update")
        def count(rows={skipping}):
            return rows.groupBy("page").count()

        @pipeline.stream(out=delta({str(lake)!r}), expect=expect("n < 1", action="drop", name="small"))
        def store(rows={skipping}):
            return rows
        """,
    )
    command = [str(OTTLA), "pipeline", "run", str(file), "--remote", connect_server.url]
    command += ["-b", broker.bootstrap, "--available-now", "--state-dir", str(tmp_path / "state")]
    for n in range(2):
        broker.produce(source, [json.dumps({"page": "a", "n": n}), "oops"])
        done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
        assert done.returncode == 0, done.stderr
    assert [json.loads(record.value())["n"] for record in consume(broker, target)] == [0, 1]
    assert len(consume(broker, bad)) == 2
    assert [json.loads(record.value())["count"] for record in consume(broker, counts)] == [1, 2]
    assert sorted(row["n"] for row in read_table(delta(str(lake))).to_pylist()) == [0]
    streams = {one["stream"]: one for one in Home(tmp_path / "state", "p").progress()["streams"]}
    figures = [streams["copy"][name] for name in ("rows_in", "rows_out", "bad")]
    assert figures == [2, 1, 1]
    assert [streams[name]["dead_lettered"] for name in ("copy", "copy.dead_letter")] == [0, 1]
    assert streams["store"]["expectations"] == {"small": 1}


def test_each_row_once_though_client_and_server_die(
    own_broker: Broker, tmp_path: Path, connect_server: ConnectServer
) -> None:
    """Windows and sessions are kept between micro-batches, and one of its streams is written by foreachBatch."""
    # In one partition, so that no micro-batch has read one partition further than another: the watermark goes by the
    # newest row, and what is behind it is left out.
    own_broker.topic(1, "clicks")
    prepare("clickstream", own_broker)
    state = tmp_path / "state"
    stricken = Stricken(shipped("clickstream"), None, own_broker, state, tmp_path, connect_server)
    die_and_check(stricken, ("client", "server"))
    said = "".join(log.read_text() for log in state.glob("clickstream/logs/*.log"))
    assert "closed the session that the run before left behind" in said


class Copying:
    """A pipeline of two streams in the background."""

    def __init__(self, broker: Broker, place: Path, server: ConnectServer) -> None:
        self.source, self.target, self._counts = (broker.topic() for _ in range(3))
        self.home = Home(place / "state", "p")
        self._broker, self._server = broker, server
        self._file = write_pipeline(
            place,
            f"""
            @pipeline.stream(out=topic({self.target!r}))
            def copy(rows=topic({self.source!r}, schema="n int")):
                return rows

            @pipeline.stream(out=topic({self._counts!r}), mode="update")
            def count(rows=topic({self.source!r}, schema="n int")):
                return rows.groupBy().count()
            """,
        )
        self.produced = 0

    def run(self) -> subprocess.CompletedProcess[str]:
        return self._ottla("run", str(self._file), "--remote", self._server.url, "--detach")

    def stop(self) -> subprocess.CompletedProcess[str]:
        return self._ottla("stop", "p", "--timeout", "20")

    def _ottla(self, *words: str) -> subprocess.CompletedProcess[str]:
        where = ["-b", self._broker.bootstrap] if words[0] == "run" else []
        command = [str(OTTLA), "pipeline", *words, *where, "--state-dir", str(self.home.path.parent)]
        return subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)

    def produce(self) -> None:
        self._broker.produce(
            self.source, [json.dumps({"n": n}) for n in range(self.produced, self.produced + 5)]
        )
        self.produced += 5

    def streams(self) -> dict[str, dict[str, Any]]:
        return {one["stream"]: one for one in self.home.progress().get("streams", [])}

    def wait(self, column: str, wanted: int | str) -> None:
        """Until both streams have it, or end with it if it is a text, and the run is still there."""

        def has_it() -> bool:
            assert self.home.is_running(), self.log_text()
            found = [one[column] for one in self.streams().values()]
            if isinstance(wanted, str) and wanted:
                found = [text[-len(wanted) :] for text in found]
            return found == [wanted] * 2

        try:
            wait_until(has_it, 300, f"{column} = {wanted}")
        except TimeoutError as error:
            raise AssertionError(f"{error}\n{self.streams()}\n{self.log_text()}") from None

    def written(self) -> tuple[list[int], int]:
        """The rows of the copy, and the last count."""
        copied = [json.loads(record.value())["n"] for record in consume(self._broker, self.target)]
        return copied, json.loads(consume(self._broker, self._counts)[-1].value())["count"]

    def log_text(self) -> str:
        return "\n".join(log.read_text(errors="replace")[-6000:] for log in self.home.logs.glob("*.log"))


def test_a_run_outlives_its_server_however_that_ends(
    broker: Broker, tmp_path: Path, connect_server: ConnectServer
) -> None:
    one = Copying(broker, tmp_path, connect_server)
    one.produce()
    done = one.run()
    assert done.returncode == 0, done.stderr
    one.wait("rows_in", 5)
    pid = one.home.pid()
    for end in (connect_server.kill, connect_server.stop):
        end()
        one.produce()
        one.wait("state", "restarting")
        # One that is being stopped still answers for a while, of course not well.
        one.wait("problem", "does not answer: Connection refused")
        connect_server.start()
        one.wait("rows_in", one.produced)  # each batch is counted once, on whichever server it was finished
        one.wait("problem", "")
        assert one.written() == (list(range(one.produced)), one.produced)
        assert one.home.pid() == pid

    connect_server.kill()
    one.wait("state", "restarting")
    done = one.stop()
    assert done.returncode == 0, f"{done.stderr}\n{one.log_text()}"
    ended = one.home.run()
    assert ended is not None
    assert (ended.state, len(ended.problems)) == ("failed", 1), (
        "the next run ends the session that may be there"
    )
    done = one.run()
    assert done.returncode == 1, "nobody is there at the start"
    assert "does not answer: Connection refused" in done.stderr
