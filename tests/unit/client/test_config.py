"""Client settings: names, values, refusals."""

import pytest

from ottla.client.config import Address, ClientConfig, ConsumerConfig, ProducerConfig, parse_addresses
from ottla.client.errors import ConfigError


def test_dotted_text_and_underscored_values_mean_the_same() -> None:
    dotted = ProducerConfig.of({"linger.ms": "7", "enable.idempotence": "false", "acks": "1"})
    assert dotted == ProducerConfig.of({"linger_ms": 7, "enable_idempotence": False, "acks": "1"})
    assert (dotted.linger_ms, dotted.idempotent, dotted.required_acks) == (7, False, 1)


def test_the_nearest_name_is_offered_in_the_users_spelling() -> None:
    with pytest.raises(ConfigError, match=r"'linger\.msec'.*'linger\.ms'"):
        ProducerConfig.of({"linger.msec": 1})
    with pytest.raises(ConfigError, match=r"'lingre_ms'.*'linger_ms'"):
        ProducerConfig.of({"lingre_ms": 1})


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"linger.ms": "soon"}, "whole number"),
        ({"enable.idempotence": "maybe"}, "true or false"),
        ({"linger_ms": -1}, "negative"),
        ({"acks": "2"}, "0, 1 or all"),
        ({"enable_idempotence": True, "acks": 1}, "acks=all"),
        ({"enable_idempotence": True, "max_in_flight_requests_per_connection": 6}, "at most 5"),
        ({"bootstrap_servers": ""}, "names no broker"),
        ({"bootstrap_servers": "host:port"}, "host:port"),
        ({"bootstrap_servers": "host:70000"}, "port"),
    ],
)
def test_values_that_make_no_sense_are_refused(settings: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        ProducerConfig.of(settings)


def test_consumer_values_are_checked_too() -> None:
    for settings in ({"auto_offset_reset": "first"}, {"isolation_level": "all"}, {"max_poll_records": 0}):
        with pytest.raises(ConfigError):
            ConsumerConfig.of(settings)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"client_id": "\ud800"}, "client_id must be text"),
        ({"client_rack": "x" * 40_000}, "client_rack must be text"),
        ({"fetch.max.bytes": "5000000000"}, "fetch_max_bytes must be a whole number up to 2147483647"),
        ({"request_timeout_ms": 5e3}, "request_timeout_ms must be a whole number"),
    ],
)
def test_what_no_request_can_carry_is_refused(settings: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        ConsumerConfig.of(settings)


def test_idempotence_yields_to_what_rules_it_out() -> None:
    assert ProducerConfig().idempotent
    assert not ProducerConfig(acks=1).idempotent
    assert not ProducerConfig(max_in_flight_requests_per_connection=6).idempotent


def test_addresses() -> None:
    assert parse_addresses("a:1, b ,[::1]:3,PLAINTEXT://c:4") == (
        Address("a", 1),
        Address("b", 9092),
        Address("::1", 3),
        Address("c", 4),
    )
    assert str(Address("::1", 3)) == "[::1]:3"
    assert ClientConfig(bootstrap_servers=["x:1", "y:2"]).addresses == (Address("x", 1), Address("y", 2))


def test_tls_is_checked_before_anything_connects() -> None:
    with pytest.raises(ConfigError, match=r"ssl\.enabled\.protocols: 'TLSv1\.1' is out of use"):
        ClientConfig.of({"security.protocol": "SSL", "ssl.enabled.protocols": "TLSv1.1"})
    # Java's client does not look at ssl.* where there is no TLS.
    assert ClientConfig.of({"ssl.enabled.protocols": "TLSv1.1"}).tls_context() is None
    config = ClientConfig.of({"security.protocol": "SSL", "ssl.truststore.location": "/no/such/store"})
    with pytest.raises(
        ConfigError, match=r"ssl.truststore.location: /no/such/store: No such file or directory"
    ):
        config.tls_context()


def test_passwords_are_not_shown() -> None:
    names = (
        "truststore_password",
        "keystore_password",
        "keystore_key",
        "key_password",
        "keystore_certificate_chain",
    )
    config = ClientConfig.of({f"ssl_{name}": "hush" for name in names})
    assert "hush" not in repr(config)
