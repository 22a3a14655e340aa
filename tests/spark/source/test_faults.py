"""What happens to a streaming read when topics go, records go, or the broker goes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import TopicPartition
from tests.support.spark_streams import MakeStream, Stream
from tests.support.spark_world import Broker, wait_for

pytestmark = [pytest.mark.long, pytest.mark.xdist_group("spark")]

SOON = "100 milliseconds"


@pytest.fixture
def stream(spark: Any, tmp_path: Path, queries: None) -> MakeStream:
    def make(broker: Broker, topic: str, **options: Any) -> Stream:
        return Stream(
            spark, broker, tmp_path / "checkpoint", subscribe=topic, startingOffsets="earliest", **options
        )

    return make


def test_a_topic_that_is_deleted_ends_the_query(broker: Broker, stream: MakeStream) -> None:
    topic = broker.topic(1)
    broker.produce(topic, ["a"])
    query = stream(broker, topic).start(processingTime=SOON)
    query.wait_for_values(["a"])
    broker.delete_topic(topic)
    said = query.error()
    assert f"{topic}-0 gone" in said
    assert "failOnDataLoss=false" in said


def test_or_does_not_if_loss_is_accepted(broker: Broker, stream: MakeStream) -> None:
    gone, stays = broker.topic(1), broker.topic(1)
    for topic in (gone, stays):
        broker.produce(topic, ["a"])
    query = stream(broker, f"{gone},{stays}", failOnDataLoss="false").start(processingTime=SOON)
    query.wait_for_values(["a", "a"])
    broker.delete_topic(gone)
    broker.produce(stays, ["b"])
    query.wait_for_values(["a", "a", "b"])
    # One of the same name is another topic: it is read from its beginning.
    broker.topic(1, name=gone)
    broker.produce(gone, ["c"])
    query.wait_for_values(["a", "a", "b", "c"])


@pytest.mark.parametrize("fails", [True, False])
def test_retention_overtakes_the_offsets(broker: Broker, stream: MakeStream, fails: bool) -> None:
    topic = broker.topic(1)
    broker.produce(topic, [str(i) for i in range(10)])
    query = stream(broker, topic, failOnDataLoss=str(fails))
    query.run()
    broker.produce(topic, [str(i) for i in range(10, 40)])
    admin = broker.admin()
    (done,) = admin.delete_records([TopicPartition(topic, 0, 25)]).values()
    done.result(30)
    if fails:
        said = query.start(availableNow=True).error()
        assert f"{topic}-0 cannot be read from 10 up to 40: the log has 25 to 40" in said
    else:
        assert sorted(map(int, query.run())) == [*range(10), *range(25, 40)]


def test_a_topic_deleted_between_two_runs(broker: Broker, stream: MakeStream) -> None:
    topic = broker.topic(1)
    broker.produce(topic, [str(i) for i in range(10)])
    query = stream(broker, topic)
    query.run()
    broker.delete_topic(topic)
    broker.topic(1, name=topic)
    broker.produce(topic, ["new"])
    assert "went back" in query.start(availableNow=True).error()
    query.options["failOnDataLoss"] = "false"
    assert query.run()[-1] == "new"


def test_the_broker_restarts_while_a_query_runs(own_broker: Broker, stream: MakeStream) -> None:
    topic = own_broker.topic(2)
    own_broker.produce(topic, ["0"])
    query = stream(own_broker, topic, ottla__group="restarted").start(processingTime=SOON)
    query.wait_for_values(["0"])
    own_broker.kill()
    own_broker.start()
    own_broker.produce(topic, ["1", "2"])
    query.wait_for_values(["0", "1", "2"])
    own_broker.restart()
    own_broker.produce(topic, ["3"])
    query.wait_for_values(["0", "1", "2", "3"])
    assert query.query.exception() is None


def test_the_broker_goes_away_in_the_middle_of_a_batch(own_broker: Broker, stream: MakeStream) -> None:
    topic = own_broker.topic(2)
    own_broker.produce(topic, ["x" * 1000] * 20_000)
    query = stream(own_broker, topic, kafka__max__partition__fetch__bytes="65536").start(processingTime=SOON)
    wait_for(lambda: bool(query.query.status["isTriggerActive"]), query.query, "a batch under way")
    own_broker.kill()
    own_broker.start()
    wait_for(lambda: len(query.rows()) == 20_000, query.query, "all rows, once")
