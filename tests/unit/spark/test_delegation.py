"""What goes to Spark's workers: never a password or a key; a token, which is found again, renewed and replaced."""

from __future__ import annotations

import pickle
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pytest
from pyspark.cloudpickle import dumps
from tests.support.certificates import Authority

from ottla.client.admin.types import DelegationToken
from ottla.client.config import SECRET_KEYS
from ottla.client.errors import AuthenticationFailed
from ottla.model.errors import ErrorCode, KafkaError
from ottla.spark import delegation
from ottla.spark.connection import KafkaOptions, OptionError, kafka_options, settings_of
from ottla.spark.delegation import Login, for_workers, login_for, public, with_login, without_secrets
from ottla.spark.source.batch import RangePartition
from ottla.spark.source.data_source import OttlaDataSource

HOUR_MS = 3_600_000
PASSWORD = "Tr0ub4dor&3"
HMAC = b"\x00\xffthe token's secret"
SCRAM_LOGIN = "org.apache.kafka.common.security.scram.ScramLoginModule"
PLAIN_LOGIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
JAAS = f'{SCRAM_LOGIN} required username="alice" password="{PASSWORD}";'
SCRAM = {
    "kafka.bootstrap.servers": "127.0.0.1:1",
    "kafka.security.protocol": "SASL_SSL",
    "kafka.sasl.mechanism": "SCRAM-SHA-512",
    "kafka.sasl.jaas.config": JAAS,
}


class Brokers:
    """What the brokers of a test know and do: tokens, a clock, and how often they were asked for what."""

    def __init__(self) -> None:
        self.now_ms = 1_000_000.0
        self.tokens: list[DelegationToken] = []
        self.asked: list[str] = []
        self.refuses: ErrorCode | None = None
        self.mechanisms = ["SCRAM-SHA-256", "SCRAM-SHA-512"]
        self.deaf_for = 0  # so many logins with a token fail before it is known

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        return None

    def _refuse(self) -> None:
        if self.refuses is not None:
            raise KafkaError(self.refuses, "no token was created: the cluster has no secret key for them")

    def create_delegation_token(self, renewers: Any = ()) -> DelegationToken:
        self.asked.append("create")
        self._refuse()
        now = int(self.now_ms)
        token = DelegationToken(
            f"token-{len(self.tokens)}",
            "User:alice",
            "User:alice",
            tuple(renewers),
            now,
            now + 24 * HOUR_MS,
            now + 7 * 24 * HOUR_MS,
            HMAC,
        )
        self.tokens.append(token)
        return token

    def describe_delegation_tokens(self, owners: list[str]) -> list[DelegationToken]:
        assert owners == ["User:alice"]
        self.asked.append("describe")
        self._refuse()
        return [token for token in self.tokens if token.expiry_timestamp_ms > self.now_ms]

    def renew_delegation_token(self, hmac: bytes) -> int:
        self.asked.append("renew")
        if self.refuses is not None:
            raise KafkaError(self.refuses, "the token was not renewed")
        (token,) = (each for each in self.tokens[-1:] if each.hmac == hmac)
        if token.expiry_timestamp_ms <= self.now_ms:
            raise KafkaError(ErrorCode.DELEGATION_TOKEN_EXPIRED, "the token has expired")
        until = min(int(self.now_ms) + 24 * HOUR_MS, token.max_timestamp_ms)
        self.tokens[-1] = replace(token, expiry_timestamp_ms=until)
        return until

    def connect(self, kafka: KafkaOptions, **more: Any) -> Any:
        """A login with a token, as it is tried out."""
        settings = dict(kafka.client)
        self.asked.append(settings["sasl.mechanism"])
        assert "tokenauth" in settings["sasl.jaas.config"]
        assert kafka.file is None
        if settings["sasl.mechanism"] not in self.mechanisms:
            raise AuthenticationFailed(ErrorCode.UNSUPPORTED_SASL_MECHANISM, "not enabled there")
        if self.deaf_for:
            self.deaf_for -= 1
            raise AuthenticationFailed(ErrorCode.SASL_AUTHENTICATION_FAILED, "Authentication failed")
        return self


@pytest.fixture
def brokers(monkeypatch: pytest.MonkeyPatch) -> Brokers:
    made = Brokers()
    monkeypatch.setattr(delegation, "_held", {})
    monkeypatch.setattr(delegation, "_admin", lambda kafka: made)
    monkeypatch.setattr(delegation, "connect", made.connect)
    monkeypatch.setattr(delegation, "_greet_all", lambda client: made.asked.append("greet"))
    monkeypatch.setattr(delegation, "_now_ms", lambda: made.now_ms)
    monkeypatch.setattr(delegation, "ASKED_AGAIN_S", 0.0)
    return made


def scram(**more: str) -> KafkaOptions:
    return kafka_options(SCRAM | {name.replace("_", "."): value for name, value in more.items()})


def test_workers_get_a_token_and_no_password(brokers: Brokers) -> None:
    made = for_workers(scram())
    settings = settings_of(made)
    assert settings["sasl.mechanism"] == "SCRAM-SHA-512"
    assert 'username="token-0"' in settings["sasl.jaas.config"]
    assert 'tokenauth="true"' in settings["sasl.jaas.config"]
    assert settings["security.protocol"] == "SASL_SSL"
    assert PASSWORD not in str(settings)
    assert brokers.tokens[0].renewers == ("User:alice",)
    for shown in (repr(made), str(made), repr(login_for(scram())), repr(delegation._held.values())):
        assert "token's" not in shown
        assert login_for(scram()).hmac not in shown  # type: ignore[union-attr]
        assert PASSWORD not in shown


def test_a_token_is_asked_for_once(brokers: Brokers) -> None:
    assert login_for(scram()) is login_for(scram())
    assert brokers.asked == ["describe", "create", "SCRAM-SHA-512", "greet"]


def test_the_next_process_finds_the_token_of_the_last(
    brokers: Brokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = login_for(scram())
    monkeypatch.setattr(delegation, "_held", {})
    brokers.asked.clear()
    assert login_for(scram()) == first
    assert brokers.asked == ["describe", "renew", "SCRAM-SHA-512", "greet"]


@pytest.mark.parametrize("renewers", [(), ("User:bob",), ("User:alice", "User:bob")])
def test_tokens_of_others_are_left_alone(brokers: Brokers, renewers: tuple[str, ...]) -> None:
    brokers.create_delegation_token(renewers)
    found = login_for(scram())
    assert found is not None
    assert found.token_id == "token-1"


def test_a_token_is_renewed_and_replaced(brokers: Brokers) -> None:
    seen = {}
    for hour in range(0, 24 * 10, 2):
        brokers.now_ms = 1_000_000.0 + hour * HOUR_MS
        found = login_for(scram())
        assert found is not None
        held = brokers.tokens[int(found.token_id.removeprefix("token-"))]
        assert held.expiry_timestamp_ms > brokers.now_ms + 2 * HOUR_MS, "it lasts until the next micro-batch"
        seen[found.token_id] = hour
    assert brokers.asked.count("create") == len(seen) == 3, "one for three and a half days"
    assert brokers.asked.count("renew") < 30


def test_a_renewal_that_fails_is_tried_again_until_it_is_too_late(brokers: Brokers) -> None:
    login_for(scram())
    brokers.now_ms += 13 * HOUR_MS
    brokers.refuses = ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert login_for(scram()) is not None
    assert login_for(scram()) is not None
    assert brokers.asked.count("renew") == 2
    brokers.now_ms += 12 * HOUR_MS
    with pytest.raises(KafkaError, match="no secret key"):
        login_for(scram())
    brokers.refuses = None
    found = login_for(scram())
    assert found is not None
    assert found.token_id == "token-1"


def test_a_token_is_kept_while_the_next_one_is_not_taken_everywhere(
    brokers: Brokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker that has just started may be long in hearing of it."""
    monkeypatch.setattr(delegation, "HEARD_WITHIN_S", 0.0)
    first = login_for(scram())
    for _ in range(7):
        brokers.now_ms += 11 * HOUR_MS
        assert login_for(scram()) == first
    brokers.now_ms += 7.5 * HOUR_MS
    brokers.deaf_for = 1_000_000
    assert login_for(scram()) == first
    asked = brokers.asked.count("create")
    assert (login_for(scram()), brokers.asked.count("create")) == (first, asked), "not with each micro-batch"
    brokers.now_ms += HOUR_MS / 4
    assert login_for(scram()) == first
    brokers.now_ms += HOUR_MS / 4
    brokers.deaf_for = 0
    second = login_for(scram())
    assert second is not None
    assert second.token_id == "token-1"
    brokers.now_ms += 84 * HOUR_MS
    brokers.deaf_for = 1_000_000
    with pytest.raises(OptionError, match="the cluster gave a token and does not take it"):
        login_for(scram())


def test_a_token_that_was_taken_back_is_replaced(brokers: Brokers) -> None:
    login_for(scram())
    brokers.now_ms += 13 * HOUR_MS
    brokers.tokens[0] = replace(brokers.tokens[0], expiry_timestamp_ms=0)
    real, brokers.refuses = brokers.create_delegation_token, ErrorCode.DELEGATION_TOKEN_NOT_FOUND

    def create(renewers: Any = ()) -> DelegationToken:
        brokers.refuses = None
        return real(renewers)

    brokers.describe_delegation_tokens = lambda owners: []  # type: ignore[method-assign]
    brokers.create_delegation_token = create  # type: ignore[method-assign]
    found = login_for(scram())
    assert found is not None
    assert found.token_id == "token-1"


def test_a_token_that_is_not_known_everywhere_yet(brokers: Brokers) -> None:
    brokers.deaf_for = 3
    assert login_for(scram()) is not None
    assert brokers.asked.count("SCRAM-SHA-512") == 4


def test_who_logs_in_otherwise_takes_the_token_by_what_there_is(brokers: Brokers) -> None:
    brokers.mechanisms = ["SCRAM-SHA-256"]
    plain = scram(
        kafka_sasl_mechanism="PLAIN",
        kafka_sasl_jaas_config=f'{PLAIN_LOGIN} required username="alice" password="{PASSWORD}";',
    )
    found = login_for(plain)
    assert found is not None
    assert found.mechanism == "SCRAM-SHA-256"


@pytest.mark.parametrize("without", ["secret key", "SCRAM"])
def test_without_tokens_a_password_is_refused_and_not_sent(brokers: Brokers, without: str) -> None:
    if without == "SCRAM":
        brokers.mechanisms = []
    else:
        brokers.refuses = ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED
    with pytest.raises(OptionError) as refused:
        for_workers(scram())
    said = str(refused.value)
    assert "Spark's workers are not given kafka.sasl.jaas.config" in said
    assert "ottla.config" in said
    assert "delegation.token.secret.key" in said
    assert PASSWORD not in said


def test_without_tokens_a_file_does(brokers: Brokers, tmp_path: Path) -> None:
    file = tmp_path / "client.properties"
    file.write_text(
        f"sasl.jaas.config={JAAS}\nsasl.mechanism=SCRAM-SHA-512\nlinger.ms=3\nrequest.timeout.ms=7\n"
    )
    given = {
        "kafka.bootstrap.servers": "127.0.0.1:1",
        "kafka.security.protocol": "SASL_SSL",
        "ottla.config": str(file),
    }
    kafka = kafka_options(given)
    # With tokens, workers need no file; its other settings come along.
    settings = settings_of(for_workers(kafka))
    assert settings["request.timeout.ms"] == "7"
    assert 'username="token-0"' in settings["sasl.jaas.config"]
    delegation._held.clear()
    brokers.refuses = ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED
    brokers.asked.clear()
    made = for_workers(kafka)
    assert made.file == str(file)
    assert PASSWORD.encode() not in pickle.dumps(made)
    assert settings_of(made)["sasl.jaas.config"] == JAAS
    for_workers(kafka)
    assert brokers.asked == ["describe"], "not again for a while"
    brokers.now_ms += 2 * delegation.ASK_AGAIN_AFTER_MS
    brokers.refuses = None
    assert for_workers(kafka).file is None


def test_a_token_that_the_user_has_goes_as_it_is(brokers: Brokers) -> None:
    brokers.refuses = ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED
    jaas = f'{SCRAM_LOGIN} required username="t1" password="aG1hYw==" tokenauth="true";'
    assert login_for(scram(kafka_sasl_jaas_config=jaas)) == Login("SCRAM-SHA-512", "t1", "aG1hYw==")
    assert brokers.asked == []


def test_a_tokens_jaas_text_is_read_back_as_it_was() -> None:
    from ottla.security.sasl.jaas import parse_jaas

    odd = 'odd" \\ name\n password="x"\r;'
    (entry,) = parse_jaas(Login("SCRAM-SHA-256", odd, "aG1hYw==").jaas())
    assert dict(entry.options) == {"username": odd, "password": "aG1hYw==", "tokenauth": "true"}


# -- what may be seen ---------------------------------------------------------------------------------------


def test_plain_settings_stay_as_they_are(brokers: Brokers) -> None:
    kafka = kafka_options({"kafka.bootstrap.servers": "127.0.0.1:1"})
    assert for_workers(kafka) is kafka
    assert brokers.asked == []


def test_a_trust_store_goes_without_its_password(tmp_path: Path) -> None:
    from cryptography import x509
    from cryptography.hazmat.primitives.serialization import BestAvailableEncryption
    from cryptography.hazmat.primitives.serialization.pkcs12 import (
        PKCS12Certificate,
        serialize_java_truststore,
    )

    authority = Authority(tmp_path / "ca")
    certificate = x509.load_pem_x509_certificate(authority.certificate.read_bytes())
    store = tmp_path / "trust.p12"
    store.write_bytes(
        serialize_java_truststore(
            [PKCS12Certificate(certificate, b"ca")], BestAvailableEncryption(PASSWORD.encode())
        )
    )
    given = {
        "kafka.bootstrap.servers": "127.0.0.1:1",
        "kafka.security.protocol": "SSL",
        "kafka.ssl.truststore.location": str(store),
        "kafka.ssl.truststore.password": PASSWORD,
    }
    settings = settings_of(public(kafka_options(given)))
    assert settings["ssl.truststore.certificates"].split() == authority.certificate.read_text().split()
    assert settings["ssl.truststore.type"] == "PEM"
    assert "ssl.truststore.location" not in settings
    assert PASSWORD not in str(settings)
    with pytest.raises(OptionError, match=r"ssl\.truststore.location") as refused:
        public(kafka_options(given | {"kafka.ssl.truststore.password": "wrong-one"}))
    assert "wrong-one" not in str(refused.value)


def test_a_keys_password_is_refused_by_tls_alone(tmp_path: Path) -> None:
    given = {
        "kafka.bootstrap.servers": "127.0.0.1:1",
        "kafka.security.protocol": "SSL",
        "kafka.ssl.keystore.location": str(tmp_path / "key.p12"),
    }
    with pytest.raises(OptionError, match=r"not given kafka\.ssl\.keystore\.password") as refused:
        public(kafka_options(given | {"kafka.ssl.keystore.password": PASSWORD}))
    assert PASSWORD not in str(refused.value)
    file = tmp_path / "client.properties"
    file.write_text(f"ssl.keystore.password={PASSWORD}\n{''.join(_lines(given))}")
    kafka = kafka_options({"ottla.config": str(file)})
    assert PASSWORD.encode() not in pickle.dumps(public(kafka))
    assert settings_of(public(kafka))["ssl.keystore.password"] == PASSWORD
    with pytest.raises(OptionError, match=r"kafka\.ssl\.keystore\.key is not supported"):
        kafka_options(given | {"kafka.ssl.keystore.key": "-----BEGIN PRIVATE KEY-----"})


# What Spark's spark.redaction.regex hides by default, by its name or by what is in it.
REDACTED = re.compile("(?i)secret|password|token|access[.]?key")


@pytest.mark.parametrize("key", sorted(SECRET_KEYS - {"sasl.jaas.config"}))
def test_no_secret_stands_in_a_plan(key: str) -> None:
    if REDACTED.search(key):
        return
    with pytest.raises(OptionError, match="for all to see") as refused:
        kafka_options({"kafka.bootstrap.servers": "127.0.0.1:1", f"kafka.{key}": PASSWORD})
    assert PASSWORD not in str(refused.value)


def _lines(given: dict[str, str]) -> Iterator[str]:
    return (f"{name.removeprefix('kafka.')}={value}\n" for name, value in given.items())


def test_a_token_needs_no_key_of_tls(brokers: Brokers) -> None:
    made = for_workers(scram(kafka_ssl_keystore_location="/k.p12", kafka_ssl_keystore_password=PASSWORD))
    assert not [key for key in settings_of(made) if key.startswith("ssl.key")]
    assert PASSWORD not in str(settings_of(made))


def test_options_are_stripped_of_secrets_in_any_spelling() -> None:
    given = {
        "kafka.SASL.jaas.config": JAAS,
        "Kafka.Ssl.Key.Password": "x",
        "subscribe": "sasl.password",
        "topic": "t",
    }
    assert without_secrets(given) == {"subscribe": "sasl.password", "topic": "t"}


# -- what is pickled ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["reader", "streamReader"])
def test_what_goes_to_tasks_has_no_password(brokers: Brokers, kind: str) -> None:
    from pyspark.sql.types import _parse_datatype_string  # noqa: F401 - PySpark is there

    source = OttlaDataSource({**SCRAM, "subscribe": "t"})
    assert PASSWORD.encode() in dumps(source), "the planner has to log in, and gets it so"
    reader = getattr(pickle.loads(dumps(source)), kind)(_Schema())
    source = pickle.loads(dumps(source))
    reader = getattr(source, kind)(_Schema())
    for each in (source, reader, (reader.read, source)):
        assert PASSWORD.encode() not in dumps(each)
    login = login_for(reader._options.kafka)
    assert login is not None
    partition = RangePartition([], login)
    assert login.hmac.encode() in dumps(partition)
    assert login.hmac not in repr(partition)
    again = pickle.loads(dumps(reader))
    kafka = with_login(again._options.kafka, pickle.loads(dumps(partition)).login)
    assert 'username="token-0"' in settings_of(kafka)["sasl.jaas.config"]


class _Schema:
    def fieldNames(self) -> list[str]:
        return ["key", "value", "topic", "partition", "offset", "timestamp", "timestampType"]


@pytest.mark.parametrize("kind", ["batch_writer", "stream_writer"])
def test_what_a_write_sends_has_no_password(
    brokers: Brokers, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pyspark.sql.types import BinaryType, StructField, StructType

    from ottla.spark.sink import writer

    monkeypatch.setattr(writer, "_check_topic", lambda options: None)
    schema = StructType([StructField("value", BinaryType())])
    made = getattr(writer, kind)({**SCRAM, "topic": "t"}, schema, False)
    assert PASSWORD.encode() not in dumps(made)
    assert PASSWORD not in repr(made._options)
    assert b"token-0" in dumps(made)
    assert login_for(scram()).hmac not in repr(made._options)  # type: ignore[union-attr]
