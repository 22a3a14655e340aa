"""`ottla pipeline` end to end, as a user runs it: detached, watched, stopped, killed and gone on with."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.interop.ottla_node import OTTLA
from tests.support.pipelines import consume, write_pipeline
from tests.support.secure_world import PASSWORD, SecureBroker
from tests.support.spark_world import Broker

pytestmark = [pytest.mark.long, pytest.mark.xdist_group("spark"), pytest.mark.timeout(900)]

SPARK = (
    "--master",
    "local[2]",
    "--conf",
    "spark.driver.memory=512m",
    "--conf",
    "spark.sql.shuffle.partitions=1",
)
COMMAND_TIMEOUT_S = 300
WAIT_S = 240
KILLS = 12 if os.environ.get("OTTLA_CHAOS") else 1


class Ottla:
    """The command, with the options that every call here has."""

    def __init__(self, broker: Broker, directory: Path) -> None:
        self.broker = broker
        self.state = directory / "state"

    def __call__(self, *words: str, code: int = 0) -> str:
        """Standard output and error together; the exit code has to be the one expected."""
        done = subprocess.run(
            [str(OTTLA), "pipeline", *words, "--state-dir", str(self.state)],
            capture_output=True,
            text=True,
            timeout=COMMAND_TIMEOUT_S,
            check=False,
        )
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout + done.stderr

    def run(self, file: Path, *words: str, code: int = 0) -> str:
        return self("run", str(file), "-b", self.broker.bootstrap, *SPARK, *words, code=code)

    def status(self, name: str) -> dict[str, Any]:
        home = self.state / name
        found: dict[str, Any] = json.loads((home / "run.json").read_text())
        try:
            progress = json.loads((home / "progress.json").read_text())
        except FileNotFoundError:
            progress = {}
        return {**found, "streams": {one["stream"]: one for one in progress.get("streams", [])}}

    def logs(self) -> str:
        return "\n".join(file.read_text()[-4000:] for file in sorted(self.state.glob("*/logs/*.log")))


@pytest.fixture
def ottla(broker: Broker, tmp_path: Path) -> Iterator[Ottla]:
    made = Ottla(broker, tmp_path)
    yield made
    for pid in made.state.glob("*/pid"):
        if pid.read_text().isdecimal():
            made("stop", pid.parent.name, "--force", "--timeout", "20")


def until(condition: Callable[[], Any], ottla: Ottla) -> Any:
    """Polls until there is something: what is waited for happens in other processes."""
    deadline = time.monotonic() + WAIT_S
    while not (found := condition()):
        assert time.monotonic() < deadline, ottla.logs()
        time.sleep(0.1)
    return found


def test_detached_watched_listed_stopped_and_gone_on_with(
    ottla: Ottla, broker: Broker, tmp_path: Path
) -> None:
    source, target, bad = broker.topic(), broker.topic(), broker.topic()
    file = write_pipeline(
        tmp_path,
        f"""
        @pipeline.stream(out=topic({target!r}, key="page"), dead_letter={bad!r})
        def copy(clicks=topic({source!r}, schema="page string, n int")):
            return clicks
        """,
        "clicks",
    )
    broker.produce(source, ['{"page": "a", "n": 1}', "oops"])
    said = ottla.run(file, "--detach")
    assert "clicks: running; `ottla pipeline status clicks` shows it" in said
    until(lambda: ottla.status("clicks")["streams"].get("copy", {}).get("rows_out") == 1, ottla)
    assert "clicks  running" in ottla("list")
    assert "runs already, as process" in ottla.run(file, code=1)
    shown = json.loads(ottla("status", "clicks", "--json"))
    copy = next(one for one in shown["streams"] if one["stream"] == "copy")
    assert (copy["rows_in"], copy["bad"], copy["state"]) == (2, 1, "running")
    until(lambda: len(consume(broker, bad)) == 1, ottla)
    assert ottla("stop", "clicks") == "clicks: stopped\n"
    assert "clicks: stopped" in ottla("status", "clicks")
    log = Path(shown["log"]).read_text()
    assert "copy: batch 0, 2 rows in" in log
    assert "stopped" in log.splitlines()[-1]
    assert "Exception" not in log

    broker.produce(source, ['{"page": "b", "n": 2}'])
    said = ottla.run(file, "--available-now")
    assert "clicks: finished after" in said
    assert "WARN" not in said
    assert [json.loads(record.value())["n"] for record in consume(broker, target)] == [1, 2]


def test_restarted_reset_and_begun_anew_from_a_time(ottla: Ottla, broker: Broker, tmp_path: Path) -> None:
    source, target = broker.topic(retention_ms=-1), broker.topic()
    moment = 1_760_000_000_000
    for number in range(4):
        broker.produce(source, [f'{{"n": {number}}}'], timestamp=moment + number * 60_000)
    start = datetime.fromtimestamp(moment / 1000 + 90, UTC).isoformat()
    file = write_pipeline(
        tmp_path,
        f"""
        @pipeline.stream(out=topic({target!r}))
        def copy(numbers=topic({source!r}, schema="n int", start={start!r})):
            return numbers
        """,
        "numbers",
    )
    ottla.run(file, "--detach")
    until(lambda: ottla.status("numbers")["streams"].get("copy", {}).get("rows_out") == 2, ottla)
    first = ottla.status("numbers")["pid"]
    broker.produce(source, ['{"n": 4}'], timestamp=moment)
    assert "numbers: running;" in ottla("restart", "numbers")
    assert ottla.status("numbers")["pid"] != first
    until(lambda: len(consume(broker, target)) == 3, ottla)
    assert "runs already" in ottla("reset", "numbers", code=1)
    ottla("stop", "numbers")
    assert "copy set aside in" in ottla("reset", "numbers")
    ottla.run(file, "--available-now")
    values = [json.loads(record.value())["n"] for record in consume(broker, target)]
    # What was there by that time once more; the last one has an older time, and comes behind those that have not.
    assert values == [2, 3, 4, 2, 3, 4]


def test_a_replay_is_what_a_batch_over_the_topic_gives(ottla: Ottla, broker: Broker, tmp_path: Path) -> None:
    """With more coming in, killed in the middle, and with another state than the pipeline has."""
    source, target = broker.topic(2, retention_ms=-1), broker.topic(3)
    moment = 1_760_000_000_000
    text = """
        from pyspark.sql import functions as F

        @pipeline.stream(out=topic({target!r}, key="n"), mode="update")
        def counted(rows=topic({source!r}, schema="n int", options={{"maxOffsetsPerTrigger": 20}})):
            return rows.groupBy({by}).agg(F.count("*").alias("times"))
        """
    file = write_pipeline(tmp_path, text.format(target=target, source=source, by='"n"'), "counts")
    for number in range(100):
        broker.produce(
            source, [f'{{"n": {number % 7}}}'], timestamp=moment + number * 1000, partition=number % 2
        )
    ottla.run(file, "--detach")
    until(lambda: ottla.status("counts")["streams"].get("counted", {}).get("rows_in") == 100, ottla)
    # Another key of the state: the checkpoint of the pipeline could not go on with this.
    write_pipeline(
        tmp_path, text.format(target=target, source=source, by='(F.col("n") % 3).alias("n")'), "counts"
    )
    bounds = ("--from", str(moment + 10_000), "--to", str(moment + 90_000))
    ottla("replay", "counts", *bounds, "--detach")
    os.kill(ottla.status("counts.replay")["pid"], signal.SIGKILL)
    broker.produce(source, ['{"n": 5}'] * 10, timestamp=moment + 95_000)
    until(lambda: "died" in ottla("list"), ottla)
    ottla("replay", "counts", *bounds)
    newest = {}
    records = consume(broker, f"{target}.replay")
    for record in records:
        row = json.loads(record.value())
        newest[row["n"]] = row["times"]
    expected = Counter(number % 7 % 3 for number in range(10, 90))
    assert newest == dict(expected)
    assert {record.partition() for record in records} <= {0, 1, 2}
    assert ottla.status("counts")["state"] == "running", "the pipeline itself goes on"
    until(lambda: ottla.status("counts")["streams"]["counted"]["rows_in"] == 110, ottla)


def test_a_replay_into_a_table(ottla: Ottla, broker: Broker, tmp_path: Path) -> None:
    """Another one, beside it or where it is said; the table of the pipeline stays as it is."""
    from deltalake import DeltaTable, QueryBuilder

    def numbers(place: Path) -> list[int]:
        table = DeltaTable(str(place))
        found = QueryBuilder().register("t", table).execute("select n from t order by n").read_all()
        return [int(n) for n in found["n"].to_pylist()]

    source = broker.topic(2, retention_ms=-1)
    moment = 1_760_000_000_000
    file = write_pipeline(
        tmp_path,
        f"""
        @pipeline.stream(out=delta({str(tmp_path / "orders")!r}))
        def kept(rows=topic({source!r}, schema="n int")):
            return rows
        """,
        "keeping",
    )
    for number in range(40):
        broker.produce(source, [f'{{"n": {number}}}'], timestamp=moment + number * 1000, partition=number % 2)
    ottla.run(file, "--available-now")
    bounds = ("--from", str(moment + 10_000), "--to", str(moment + 30_000))
    ottla("replay", "keeping", *bounds)
    assert numbers(tmp_path / "orders.replay") == list(range(10, 30))
    elsewhere = (*bounds, "--into", str(tmp_path / "other"))
    assert "`ottla pipeline reset keeping.replay`" in ottla("replay", "keeping", *elsewhere, code=1)
    ottla("reset", "keeping.replay", "-b", broker.bootstrap)
    ottla("replay", "keeping", *elsewhere)
    assert numbers(tmp_path / "other") == list(range(10, 30))
    assert numbers(tmp_path / "orders") == list(range(40))


def test_a_query_that_fails_is_told_in_a_sentence(ottla: Ottla, broker: Broker, tmp_path: Path) -> None:
    source, target = broker.topic(), broker.topic()
    file = write_pipeline(
        tmp_path,
        f"""
        @pipeline.stream(out=topic({target!r}))
        def copy(clicks=topic({source!r}, schema="n int")):
            return clicks
        """,
    )
    broker.produce(source, ["oops"])
    said = ottla.run(file, "--available-now", code=1)
    assert f"ottla: copy: {source}-0 at offset 0: the value is not JSON of the schema struct<n:int>;" in said
    assert "Traceback" not in said
    assert "p: failed" in ottla("status", "p", code=1)


def test_every_misspelt_column_is_told_and_no_topic_is_made(
    ottla: Ottla, broker: Broker, tmp_path: Path
) -> None:
    source, made = broker.topic(), f"made-by-{broker.topic()}"
    file = write_pipeline(
        tmp_path,
        f"""
        @pipeline.stream(out=topic({made!r}, partitions=1))
        def first(clicks=topic({source!r}, schema="page string")):
            return clicks.select("pag")

        @pipeline.stream(out=topic({made!r}, partitions=1))
        def second(clicks=topic({source!r}, schema="page string")):
            return clicks.where("visitor > 3")
        """,
    )
    said = ottla.run(file, "--available-now", code=1)
    assert "first" in said
    assert "`pag`" in said
    assert "second" in said
    assert "`visitor`" in said
    assert "Traceback" not in said
    assert made not in broker.admin().list_topics(timeout=20).topics


def test_ctrl_c_while_spark_starts_waits_for_nothing(ottla: Ottla, broker: Broker, tmp_path: Path) -> None:
    source, target = broker.topic(), broker.topic()
    file = write_pipeline(
        tmp_path,
        f"""
        @pipeline.stream(out=topic({target!r}))
        def copy(clicks=topic({source!r}, schema="n int")):
            return clicks
        """,
    )
    command = [str(OTTLA), "pipeline", "run", str(file), "-b", broker.bootstrap, *SPARK]
    process = subprocess.Popen(
        [*command, "--state-dir", str(ottla.state)],
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),
    )
    until(lambda: "starting Spark" in ottla.logs(), ottla)
    process.send_signal(signal.SIGINT)
    said = process.communicate(timeout=COMMAND_TIMEOUT_S)[1]
    assert process.returncode == 130, said
    assert "p: stopped after" in said
    assert "query" not in ottla.logs(), "it had begun"


def test_a_stream_that_fails_for_good_leaves_the_others_running(
    ottla: Ottla, broker: Broker, tmp_path: Path
) -> None:
    good, bad, target, other = (broker.topic() for _ in range(4))
    file = write_pipeline(
        tmp_path,
        f"""
        @pipeline.stream(out=topic({target!r}))
        def works(clicks=topic({good!r}, schema="n int")):
            return clicks

        @pipeline.stream(out=topic({other!r}))
        def fails(clicks=topic({bad!r}, schema="n int")):
            return clicks
        """,
    )
    broker.produce(bad, ["oops"])
    ottla.run(file, "--detach")
    until(lambda: ottla.status("p")["problems"], ottla)
    broker.produce(good, ['{"n": 1}'])
    until(lambda: ottla.status("p")["streams"].get("works", {}).get("rows_out") == 1, ottla)
    found = ottla.status("p")
    assert found["state"] == "running"
    assert found["streams"]["fails"]["state"] == "failed"
    assert "the value is not JSON" in ottla("status", "p")
    ottla("stop", "p")
    assert "p: failed" in ottla("status", "p", code=1)


def test_kill_9_and_go_on_leaves_each_row_once_in_every_sink(
    ottla: Ottla, broker: Broker, tmp_path: Path
) -> None:
    source, target = broker.topic(partitions=2), broker.topic()
    lake = tmp_path / "lake"
    limited = f"topic({source!r}, schema='n int', options={{'maxOffsetsPerTrigger': 40}})"
    file = write_pipeline(
        tmp_path,
        f"""
        @pipeline.stream(out=topic({target!r}))
        def to_topic(rows={limited}):
            return rows

        @pipeline.stream(out=delta({str(lake / "delta")!r}))
        def to_delta(rows={limited}):
            return rows

        @pipeline.stream(out=iceberg("a.rows", warehouse={str(lake / "iceberg")!r}))
        def to_iceberg(rows={limited}):
            return rows

        @pipeline.stream(out=parquet({str(lake / "parquet")!r}))
        def to_parquet(rows={limited}):
            return rows
        """,
    )
    rows = 200 * (1 + KILLS)
    broker.produce(source, [json.dumps({"n": n}) for n in range(rows)])
    dice = random.Random(5)
    for _ in range(KILLS):
        ottla.run(file, "--detach")
        before = ottla.status("p")
        batches = dice.randint(1, 3)
        until(
            lambda batches=batches: (
                all(
                    one["state"] != "running" or (one["batch"] or 0) >= batches
                    for one in ottla.status("p")["streams"].values()
                )
                and ottla.status("p")["streams"]
            ),
            ottla,
        )
        os.kill(before["pid"], signal.SIGKILL)
        until(lambda: "p     died" in ottla("list"), ottla)
    ottla.run(file, "--available-now")
    expected = Counter(range(rows))
    assert Counter(json.loads(record.value())["n"] for record in consume(broker, target)) == expected
    assert Counter(row["n"] for row in delta(lake / "delta")) == expected
    assert Counter(row["n"] for row in iceberg(lake / "iceberg")) == expected
    assert Counter(row["n"] for row in parquet(lake / "parquet")) == expected


def delta(path: Path) -> list[dict[str, Any]]:
    from ottla.spark.pipeline import declare
    from ottla.spark.pipeline.lake.delta import read_table

    rows: list[dict[str, Any]] = read_table(declare.delta(str(path))).to_pylist()
    return rows


def iceberg(warehouse: Path) -> list[dict[str, Any]]:
    from ottla.spark.pipeline import declare
    from ottla.spark.pipeline.lake.iceberg import read_table

    rows: list[dict[str, Any]] = read_table(declare.iceberg("a.rows", warehouse=str(warehouse))).to_pylist()
    return rows


def parquet(path: Path) -> list[dict[str, Any]]:
    """The files that Spark's own log of the directory names: the others are left from batches that were cut short."""
    import pyarrow.parquet as pq

    lines = [
        line for file in (path / "_spark_metadata").glob("[0-9]*") for line in file.read_text().splitlines()
    ]
    files = {json.loads(line)["path"] for line in lines if line.startswith("{")}
    return [row for file in files for row in pq.read_table(file.removeprefix("file://")).to_pylist()]


def test_a_pipeline_that_has_to_log_in(tmp_path: Path) -> None:
    node = SecureBroker(tmp_path)
    node.format()
    with node:
        ottla = Ottla(node, tmp_path)
        source, target = node.topic(), node.topic()
        file = write_pipeline(
            tmp_path,
            f"""
            @pipeline.stream(out=topic({target!r}))
            def copy(clicks=topic({source!r}, schema="n int")):
                return clicks
            """,
        )
        node.produce(source, ['{"n": 1}', '{"n": 2}'])
        config = node.properties(tmp_path / "client.properties")
        # The file says where the brokers are, too.
        said = ottla("run", str(file), *SPARK, "--available-now", "--command-config", str(config))
        assert "p: finished after" in said
        assert [json.loads(record.value())["n"] for record in consume(node, target)] == [1, 2]
        wrong = tmp_path / "wrong.properties"
        wrong.write_text(config.read_text().replace(PASSWORD, "guess-work"))
        said += ottla("run", str(file), *SPARK, "--available-now", "--command-config", str(wrong), code=1)
        assert said.splitlines()[-1].startswith(f"ottla: {node.secure}: Authentication failed")
        left = [path.read_bytes() for path in ottla.state.rglob("*") if path.is_file()]
        for secret in (PASSWORD, "guess-work"):
            assert secret not in said
            assert not [data for data in left if secret.encode() in data]
