"""A cluster that does not let a client in is not asked again; one that does is asked again who we are, unnoticed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from tests.interop.process import wait_until

from ottla.client.admin.types import NewTopic, UserScramCredentialDeletion, UserScramCredentialUpsertion
from ottla.client.blocking import Admin, Consumer
from ottla.client.errors import AuthenticationFailed, NoBrokersAvailable
from ottla.client.inline import InlineClient
from ottla.model.errors import ErrorCode, KafkaError
from ottla.model.ids import TopicPartition
from ottla.testing.broker import Broker

MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"
SESSION_MS = 300
FAR_MS = 60_000
PATIENCE_S = 30.0


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    listeners = "PLAINTEXT://127.0.0.1:0,CONTROLLER://127.0.0.1:0"
    jaas = f'{MODULE} required username="node" password="x" user_node="x" user_alice="alice-secret";'
    settings = {
        "listeners": listeners,
        "listener.security.protocol.map": "PLAINTEXT:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT",
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256",
        "sasl.mechanism.inter.broker.protocol": "PLAIN",
        "listener.name.plaintext.plain.sasl.jaas.config": jaas,
        "connections.max.reauth.ms": SESSION_MS,
        "connection.failed.authentication.delay.ms": 1,
    }
    with Broker(settings) as node:
        yield node


def settings(broker: Broker, **more: Any) -> dict[str, Any]:
    return {
        "bootstrap_servers": broker.bootstrap_servers,
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": "PLAIN",
        "sasl_username": "alice",
        "sasl_password": "alice-secret",
        "bootstrap_timeout_ms": FAR_MS,
        **more,
    }


@pytest.mark.parametrize("kind", [InlineClient, Admin])
def test_a_wrong_password_is_told_at_once(
    broker: Broker, kind: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    # The second address might be right one day; who asks there would be refused again.
    addresses = f"{broker.bootstrap_servers},127.0.0.1:1"
    wrong = settings(broker, sasl_password="guess-work", bootstrap_servers=addresses)
    with pytest.raises(AuthenticationFailed, match="Authentication failed") as refused, kind(wrong):
        pytest.fail("it was let in")
    assert refused.value.code is ErrorCode.SASL_AUTHENTICATION_FAILED
    assert str(refused.value).startswith(f"{broker.bootstrap_servers}: ")
    # The client hears of it before the broker says so.
    wait_until(lambda: "authentication failed" in caplog.text, PATIENCE_S, "the broker's line")
    assert caplog.text.count("authentication failed") == 1, "it was tried once"
    assert "guess-work" not in str(refused.value) + caplog.text


def test_a_mechanism_that_there_is_not(broker: Broker) -> None:
    with pytest.raises(
        AuthenticationFailed, match=r"SCRAM-SHA-512 is not enabled there; these are: .*PLAIN"
    ) as refused:
        InlineClient(settings(broker, sasl_mechanism="SCRAM-SHA-512")).start()
    assert refused.value.code is ErrorCode.UNSUPPORTED_SASL_MECHANISM


def test_a_broker_that_is_away_may_still_come(broker: Broker) -> None:
    away = settings(broker, bootstrap_servers="127.0.0.1:1", bootstrap_timeout_ms=300)
    with pytest.raises(NoBrokersAvailable):
        InlineClient(away).start()


def test_a_client_that_was_idle_beyond_its_session_goes_on(broker: Broker) -> None:
    """Nothing runs in the background of an inline client: it finds out when it is used again."""
    with InlineClient(settings(broker)) as client:
        client.topics()
        client.until(lambda: False, 5 * SESSION_MS)
        client.topics()
        assert client.topics() is not None


def test_a_consumer_that_is_not_let_in_any_more_hears_it(broker: Broker) -> None:
    """As in Java: polls that never have anything would say nothing of a password that was changed."""
    mechanism, user = "SCRAM-SHA-256", "bob"
    with Admin(settings(broker)) as admin:
        assert not isinstance(admin.create_topics([NewTopic("t")])["t"], KafkaError)
        admin.alter_user_scram_credentials([UserScramCredentialUpsertion(user, "bob-secret", mechanism)])
        bob = settings(broker, sasl_mechanism=mechanism, sasl_username=user, sasl_password="bob-secret")
        with Consumer(bob) as consumer:
            consumer.assign([TopicPartition("t", 0)])
            assert consumer.poll(0) == {}
            admin.alter_user_scram_credentials([UserScramCredentialDeletion(user, mechanism)])
            with pytest.raises(AuthenticationFailed, match=f"{broker.bootstrap_servers}: ") as refused:
                wait_until(lambda: consumer.poll(100) is None, PATIENCE_S, "a refusal")
    assert refused.value.code is ErrorCode.SASL_AUTHENTICATION_FAILED
    assert "bob-secret" not in str(refused.value)
