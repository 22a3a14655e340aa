"""How old the first record is that a group has not read, whatever is in the records."""

import argparse
from collections.abc import Iterator

import pytest
from tests.unit.client.stub_broker import StubBroker

from ottla.cli.group.lag import first_timestamps
from ottla.client.errors import ClientError
from ottla.model.ids import TopicPartition
from ottla.records.record import build_batch
from ottla.security.encryption import HEADER

T, U = TopicPartition("t", 0), TopicPartition("u", 0)


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> Iterator[StubBroker]:
    monkeypatch.setenv("OTTLA_PROFILE", "")
    monkeypatch.delenv("OTTLA_CONFIG", raising=False)
    with StubBroker() as running:
        for tp in (T, U):
            running.cluster.create(tp.topic, 1)
        running.cluster.partition(U).append(bytes(build_batch([(2000, None, b"v", ())])))
        yield running


def timestamps(broker: StubBroker, *settings: str) -> dict[tuple[TopicPartition, int], int]:
    args = argparse.Namespace(
        profile=None, command_config=None, property=list(settings), bootstrap_server=broker.address
    )
    return first_timestamps(args, [(T, 0), (U, 0)], {T: 1, U: 1})


@pytest.mark.parametrize("settings", [(), ("encryption.key=/nowhere/keys.json",)])
def test_the_lag_of_encrypted_records_needs_no_key(broker: StubBroker, settings: tuple[str, ...]) -> None:
    sealed = build_batch([(1000, None, b"secret", ((HEADER, b"header"),))])
    broker.cluster.partition(T).append(bytes(sealed))
    assert timestamps(broker, *settings) == {(T, 0): 1000, (U, 0): 2000}


def test_what_cannot_be_read_has_no_age_and_the_others_have(
    broker: StubBroker, capsys: pytest.CaptureFixture[str]
) -> None:
    damaged = build_batch([(1000, None, b"value", ())])
    damaged[-1] ^= 1
    broker.cluster.partition(T).batches.append(bytearray(damaged))
    assert timestamps(broker) == {(U, 0): 2000}
    warning = capsys.readouterr().err
    assert "the lag in seconds of t-0 is not known" in warning
    assert "CORRUPT_MESSAGE" in warning


def test_what_nobody_can_be_asked_is_no_age_that_is_not_known(broker: StubBroker) -> None:
    with pytest.raises(ClientError):
        timestamps(broker, "group.protocol=nonsense")
