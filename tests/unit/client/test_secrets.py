"""Passwords, keys and tokens of a client's settings are in no repr, no message and no traceback's words."""

from __future__ import annotations

import re
import traceback
from dataclasses import fields
from pathlib import Path

import pytest

from ottla.client.admin.types import DelegationToken
from ottla.client.blocking import Admin, Producer
from ottla.client.config import (
    SECRET_KEYS,
    AdminConfig,
    ClientConfig,
    ConsumerConfig,
    ProducerConfig,
    settings_file,
)
from ottla.client.errors import ConfigError
from ottla.client.inline import InlineClient
from ottla.model.errors import KafkaError

SECRET = "Tr0ub4dor&3"
SCRAM_LOGIN = "org.apache.kafka.common.security.scram.ScramLoginModule"
JAAS = f'{SCRAM_LOGIN} required username="alice" password="{SECRET}";'
LOGIN = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "SCRAM-SHA-512"}
PUBLIC = {"ssl.truststore.certificates", "ssl.keystore.certificate.chain"}


def test_what_sounds_like_a_secret_is_one() -> None:
    """A setting that is added later, too."""
    sounding = re.compile(
        r"password|secret|jaas|passphrase|keystore\.key$|private\.key$|assertion$|credential"
    )
    names = {
        field.name.replace("_", ".") for kind in (ProducerConfig, ConsumerConfig) for field in fields(kind)
    }
    files = {name for name in names if name.endswith((".location", ".file", ".type", ".id"))}
    assert {name for name in names - files if sounding.search(name)} <= SECRET_KEYS
    assert {"sasl.jaas.config", "sasl.password", "ssl.key.password", "ssl.keystore.key"} <= SECRET_KEYS
    hidden = {field.name.replace("_", ".") for field in fields(ClientConfig) if not field.repr}
    assert hidden - SECRET_KEYS == PUBLIC


@pytest.mark.parametrize("kind", [ClientConfig, AdminConfig, ProducerConfig, ConsumerConfig])
def test_a_configuration_does_not_show_them(kind: type[ClientConfig]) -> None:
    made = kind.of(
        {**LOGIN, "sasl.jaas.config": JAAS, "ssl.key.password": SECRET, "ssl.keystore.key": SECRET}
    )
    made_by_name = kind.of({**LOGIN, "sasl.username": "alice", "sasl.password": SECRET})
    for shown in (
        repr(made),
        str(made),
        repr(made.security()),
        repr(made_by_name),
        repr(made_by_name.security()),
    ):
        assert SECRET not in shown
    assert "alice" in repr(made_by_name)


def test_clients_do_not_show_them() -> None:
    settings = {
        **LOGIN,
        "bootstrap.servers": "127.0.0.1:1",
        "bootstrap.timeout.ms": 0,
        "sasl.jaas.config": JAAS,
    }
    client = InlineClient(settings)
    assert SECRET not in repr(client) + repr(client.core) + repr(vars(client))
    for kind in (Admin, Producer):
        with pytest.raises(KafkaError) as refused, kind(settings) as started:
            assert SECRET not in repr(started)
        assert SECRET not in "".join(traceback.format_exception(refused.value))


@pytest.mark.parametrize(
    "given",
    [
        {"sasl.jaas.config": f'{SCRAM_LOGIN} required username="alice" password={SECRET};'},
        {"sasl.jaas.config": f'{SCRAM_LOGIN} required username="alice" password="{SECRET}"'},
        {"sasl.jaas.config": f'{SCRAM_LOGIN} maybe username="alice" password="{SECRET}";'},
        {"sasl.jaas.config": f'com.sun.security.auth.module.JndiLoginModule required password="{SECRET}";'},
        {"sasl.jaas.config": SECRET},
        {"sasl.jaas.config": JAAS, "sasl.mechanism": "PLAIN"},
        {"sasl.jaas.config": JAAS, "sasl.mechanism": "NONE-SUCH"},
        {"sasl.jaas.config": JAAS, "security.protocol": "PLAINTEXT"},
        {"sasl.password": SECRET},
        {"sasl.password": SECRET, "sasl.username": "\ud800"},
        {"sasl.username": "alice", "sasl.password": SECRET + "\ud800"},
        {"sasl.jaas.config": JAAS, "linger.msec": "1"},
        {
            "sasl.jaas.config": JAAS,
            "security.protocol": "SASL_SSL",
            "ssl.truststore.location": "/no/such/file",
        },
        {
            "sasl.jaas.config": JAAS,
            "security.protocol": "SASL_SSL",
            "ssl.keystore.type": "PEM",
            "ssl.keystore.certificate.chain": "no certificate",
            "ssl.keystore.key": SECRET,
            "ssl.key.password": SECRET,
        },
    ],
)
def test_a_refusal_does_not_repeat_them(given: dict[str, str]) -> None:
    with pytest.raises(ConfigError) as refused:
        ClientConfig.of({**LOGIN, **given}).security()
    assert SECRET not in "".join(traceback.format_exception(refused.value))
    assert SECRET not in repr(refused.value)


def test_a_file_of_settings(tmp_path: Path) -> None:
    file = tmp_path / "client.properties"
    file.write_text(f"sasl.jaas.config={JAAS}\nlinger.ms=3\nacme.thing=x\nbootstrap.servers=a:1\n")
    found = settings_file(str(file))
    assert found.taken == {"sasl.jaas.config": JAAS, "bootstrap.servers": "a:1"}
    assert found.ignored == [("acme.thing", 3)]
    assert SECRET not in repr(found)
    assert "linger.ms" in settings_file(str(file), ProducerConfig).taken
    file.write_bytes("ssl.truststore.password=schlüssel\n".encode("iso-8859-1"))
    assert settings_file(str(file)).taken == {"ssl.truststore.password": "schlüssel"}
    file.write_text(f"sasl.jaaz.config={JAAS}\n")
    with pytest.raises(ConfigError, match=r"sasl\.jaaz\.config .*line 1.* is not supported") as refused:
        settings_file(str(file))
    assert SECRET not in str(refused.value)
    file.write_text(f"sasl.jaas.config={SECRET}\\u00zz\n")
    with pytest.raises(ConfigError) as refused:
        settings_file(str(file))
    assert SECRET not in str(refused.value)
    with pytest.raises(FileNotFoundError):
        settings_file(str(tmp_path / "none"))
    with file.open("wb") as wide:
        wide.truncate(5 << 20)
    with pytest.raises(ConfigError, match="no file of settings"):
        settings_file(str(file))


def test_a_token_does_not_show_its_secret() -> None:
    token = DelegationToken("id", "User:a", "User:a", (), 0, 1, 2, SECRET.encode())
    assert SECRET not in repr(token)
