"""Spark on a listener with SASL_SSL: reads, writes, restarts; and where a password or a token can not be found.

Tasks log in with a delegation token that the driver gets for them. Sessions end after seconds here, so that connections
which are kept prove themselves again.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlparse

import pytest
from confluent_kafka import Consumer
from pyspark.errors import PySparkException, StreamingQueryException
from tests.support.secure_world import PASSWORD, PLAIN_LOGIN, SecureBroker
from tests.support.spark_world import QUERY_TIMEOUT_S

from ottla.client.blocking import Admin

pytestmark = pytest.mark.xdist_group("spark")

ROWS = 200


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureBroker]:
    node = SecureBroker(tmp_path_factory.mktemp("secured"))
    node.format()
    with node:
        yield node
    log = node.log_text()
    assert "Traceback" not in log
    assert PASSWORD not in log


def copied(spark: Any, secured: SecureBroker, source: str, sink: str, checkpoint: Path) -> Any:
    """A query that copies what there is, exactly once, and has ended."""
    stream = (
        spark.readStream.format("ottla")
        .options(
            **secured.options, subscribe=source, startingOffsets="earliest", maxOffsetsPerTrigger=ROWS // 2
        )
        .load()
    )
    query = (
        stream.select("key", "value")
        .writeStream.format("ottla")
        .options(**secured.options, topic=sink, checkpointLocation=str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(QUERY_TIMEOUT_S)
    assert query.exception() is None
    return query


def values_of(secured: SecureBroker, topic: str, count: int) -> list[int]:
    """So many committed values, and none after them."""
    consumer = Consumer(
        {"bootstrap.servers": secured.bootstrap, "group.id": topic, "auto.offset.reset": "earliest"}
    )
    consumer.subscribe([topic])
    found: list[int] = []
    while len(found) < count:
        message = consumer.poll(60)
        assert message is not None
        assert message.error() is None
        found.append(int(message.value()))
    assert consumer.poll(0.5) is None
    consumer.close()
    return sorted(found)


def token_of(secured: SecureBroker) -> Any:
    """The one token that all of Spark's processes share."""
    settings = {name.removeprefix("kafka."): value for name, value in secured.options.items()}
    with Admin(settings) as admin:
        (token,) = admin.describe_delegation_tokens()
    return token


def test_streams_and_batches_and_where_no_secret_is(
    spark: Any, secured: SecureBroker, tmp_path: Path, capfd: pytest.CaptureFixture[str], queries: None
) -> None:
    spark.sparkContext.setLogLevel("INFO")
    source, sink = secured.topic(2), secured.topic(2)
    secured.produce(source, map(str, range(ROWS)))
    plans = [copied(spark, secured, source, sink, tmp_path / "checkpoint")]
    secured.produce(source, map(str, range(ROWS, 2 * ROWS)))
    plans.append(copied(spark, secured, source, sink, tmp_path / "checkpoint"))
    assert values_of(secured, sink, 2 * ROWS) == list(range(2 * ROWS))
    # A batch, by PLAIN: its tasks go by SCRAM all the same, with the token.
    by_plain = secured.options | {
        "kafka.sasl.mechanism": "PLAIN",
        "kafka.sasl.jaas.config": secured.jaas(module=PLAIN_LOGIN),
    }
    frame = spark.read.format("ottla").options(**by_plain, subscribe=source).load()
    written = secured.topic(1)
    frame.select("value").write.format("ottla").mode("append").options(**by_plain, topic=written).save()
    assert values_of(secured, written, 2 * ROWS) == list(range(2 * ROWS))
    token = token_of(secured)
    spark.sparkContext.setLogLevel("WARN")

    shown = {
        "plan": spark._jvm.PythonSQLUtils.explainString(frame._jdf.queryExecution(), "extended"),
        "execution": frame._jdf.queryExecution().toString(),
        "queries": "".join(query._jsq.explainInternal(True) for query in plans),
        "progress": json.dumps([[str(each) for each in query.recentProgress] for query in plans]),
        "arguments": "".join(_arguments()),
        "output": "".join(capfd.readouterr()),
        **{str(path): text for path, text in _files(spark, tmp_path / "checkpoint")},
    }
    assert "RelationV2" in shown["plan"]
    assert any("AppendData" in text for name, text in shown.items() if "/events/" in name), "writes, too"
    assert any("offsets" in name for name in shown)
    assert sum(len(text) for text in shown.values()) > 100_000
    secrets = [PASSWORD, token.hmac.decode("latin-1"), base64.b64encode(token.hmac).decode()]
    for name, text in shown.items():
        assert not [secret for secret in secrets if secret in text], name
    _look_into_workers(token.token_id)


def _arguments() -> Iterator[str]:
    """Of every process but those that the test itself gave a password to: the broker's, at formatting."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes()
        except OSError:
            continue  # it has ended
        if b"serve" not in words.split(b"\0"):
            yield words.decode("utf-8", "replace")


def _files(spark: Any, checkpoint: Path) -> Iterator[tuple[Path, str]]:
    """What Spark leaves on the disk: the checkpoint, its log, its event log, its local directories."""
    conf = spark.sparkContext.getConf()
    said = re.search(r"-Dottla\.spark\.log=(\S+)", conf.get("spark.driver.defaultJavaOptions"))
    assert said is not None
    events = Path(unquote(urlparse(conf.get("spark.eventLog.dir")).path))
    for place in (checkpoint, Path(said[1]).parent, events, Path(conf.get("spark.local.dir"))):
        assert place.is_dir()
        for path in place.rglob("*"):
            if path.is_file():
                yield path, path.read_bytes().decode("latin-1")


def _look_into_workers(token_id: str) -> None:
    """The memory of the processes that run tasks: the token's name is in some of them, the password in none."""
    seen = 0
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().split(b"\0")
            name = path.with_name("comm").read_text().strip()
        except OSError:
            continue
        if b"pyspark.worker" not in words and name != "pyspark.worker":  # the second is a fork's
            continue
        memory = _memory(path.parent)
        assert PASSWORD.encode() not in memory, words
        seen += token_id.encode() in memory
    assert seen, "no worker has logged in with the token"


def _memory(process: Path) -> bytes:
    found = []
    try:
        with open(process / "maps") as maps, open(process / "mem", "rb", buffering=0) as memory:
            for line in maps:
                area, rights, *_ = line.split()
                if not rights.startswith("rw"):
                    continue
                start, end = (int(part, 16) for part in area.split("-"))
                try:
                    memory.seek(start)
                    found.append(memory.read(end - start))
                except (OSError, ValueError, OverflowError):
                    continue
    except OSError:
        return b""
    return b"".join(found)


def test_a_wrong_password_is_one_clear_error(
    spark: Any, secured: SecureBroker, tmp_path: Path, queries: None
) -> None:
    topic = secured.topic(1)
    wrong = secured.options | {"kafka.sasl.jaas.config": secured.jaas("guess-work")}
    reader = spark.read.format("ottla").options(**wrong, subscribe=topic).load()
    rows = spark.range(3).selectExpr("cast(id as string) as value")
    before = secured.log_text().count("authentication failed")
    said = []
    with pytest.raises(PySparkException) as refused:
        reader.count()
    said.append(str(refused.value))
    with pytest.raises(PySparkException) as refused:
        rows.write.format("ottla").options(**wrong, topic=topic).save()
    said.append(str(refused.value))
    stream = spark.readStream.format("ottla").options(**wrong, subscribe=topic).load()
    with pytest.raises(StreamingQueryException) as ended:
        stream.writeStream.format("noop").option(
            "checkpointLocation", str(tmp_path)
        ).start().awaitTermination(QUERY_TIMEOUT_S)
    said.append(str(ended.value))
    for text in said:
        assert "Authentication failed" in text
        assert "guess-work" not in text
        assert "Traceback" not in text
    tried = secured.log_text().count("authentication failed") - before
    assert tried <= len(said) + 2, "once each, or nearly: nothing tries again for a minute"


def test_where_there_are_no_tokens_a_file_is_read_by_the_workers(
    spark: Any, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("no-tokens")
    node = SecureBroker(folder, tokens=False)
    node.format()
    with node:
        topic = node.topic(1)
        node.produce(topic, map(str, range(10)))
        given = spark.read.format("ottla").options(**node.options, subscribe=topic).load()
        with pytest.raises(PySparkException) as refused:
            given.count()
        assert "Spark's workers are not given kafka.sasl.jaas.config" in str(refused.value)
        assert "ottla.config" in str(refused.value)
        assert PASSWORD not in str(refused.value)
        settings = {"ottla.config": str(node.properties(folder / "client.properties"))}
        rows = spark.read.format("ottla").options(**settings, subscribe=topic).load()
        assert rows.count() == 10
        rows.select("value").write.format("ottla").options(**settings, topic=topic).save()
        assert spark.read.format("ottla").options(**settings, subscribe=topic).load().count() == 20
        assert PASSWORD not in node.log_text()
