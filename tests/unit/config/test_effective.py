"""The list of keys that have an effect against the code: whoever reads a key names it.

A key counts as read if a module beyond the checks and tables of `config` names it, or if it is the default of a
topic key whose field of LogConfig is read.
"""

import re
from functools import cache
from pathlib import Path

import pytest

import ottla
from ottla.config.broker import BrokerConfig
from ottla.config.definitions import BROKER_KEYS, GROUP_KEYS, TOPIC_KEYS
from ottla.config.effective import (
    EFFECTIVE,
    OF_SECURITY,
    PER_LISTENER,
    check_protection,
    without_effect,
)
from ottla.config.errors import ConfigError
from ottla.config.settings import synonyms_of

PACKAGE = Path(ottla.__file__).parent
# These only check, describe or fill in a value.
TABLES = {
    *("alter", "definitions", "describe", "dynamic", "effective", "settings", "standalone", "types"),
}
# So do the rules between keys, which end the module of BrokerConfig.
RULES = "\ndef _check_rules("
# Read through a name that is put together, or there for its check alone.
ALSO_READ = {"controller.quorum.bootstrap.servers", "group.streams.max.standby.replicas"} | {
    *(f"ssl.keystore.{name}" for name in ("certificate.chain", "key", "location", "password", "type")),
    *(f"ssl.truststore.{name}" for name in ("certificates", "location", "password", "type")),
    # What they ask for is what MIT's library does by itself.
    *("sasl.kerberos.kinit.cmd", "sasl.kerberos.min.time.before.relogin"),
    *("sasl.kerberos.ticket.renew.jitter", "sasl.kerberos.ticket.renew.window.factor"),
}


@cache
def _sources() -> tuple[str, ...]:
    config = PACKAGE / "config"
    passed_over = {config / f"{name}.py" for name in TABLES}
    # These are clients: their settings may be called like a broker's.
    clients = {PACKAGE / "client", PACKAGE / "spark", PACKAGE / "examples"}
    found = [p for p in PACKAGE.rglob("*.py") if p not in passed_over and not clients & set(p.parents)]
    texts = {p: p.read_text() for p in found if config / "keys" not in p.parents}
    broker = config / "broker.py"
    texts[broker], _ = texts[broker].split(RULES)
    return tuple(texts.values())


def _named(key: str) -> bool:
    return any(f'"{key}"' in text for text in _sources())


def _topic_field_read(key: str) -> bool:
    for topic_key in TOPIC_KEYS.values():
        if topic_key.synonym is not None and key in synonyms_of(topic_key.synonym):
            field = re.compile(rf"\.{topic_key.name.replace('.', '_')}\b")
            if any(field.search(text) for text in _sources()):
                return True
    return False


def _group_key_read(key: str) -> bool:
    """What a group inherits from the broker, and the bounds of what it may set itself."""
    inherited = key.replace(".min.", ".").replace(".max.", ".")
    return any(group_key.synonym == inherited and _named(group_key.name) for group_key in GROUP_KEYS.values())


def _is_read(key: str) -> bool:
    return _named(key) or _topic_field_read(key) or _group_key_read(key) or key in ALSO_READ


def test_every_effective_key_is_read_somewhere() -> None:
    assert [key for key in sorted(EFFECTIVE) if not _is_read(key)] == []


def test_every_key_that_is_read_is_called_effective() -> None:
    read = {key for key in BROKER_KEYS if _named(key)}
    # A listener's alone; and what no node asks for yet, since it does not start with what they belong to.
    listeners_own = {"sasl.jaas.config", "sasl.server.callback.handler.class"}
    not_asked_yet = {
        "client.quota.callback.class",
    }
    assert sorted(read - EFFECTIVE - listeners_own - not_asked_yet) == []


def test_listeners_own_keys_are_those_read_for_a_listener() -> None:
    read = {key for key in BROKER_KEYS if any(_read_for_listener(key, text) for text in _sources())}
    # Those of security are read through `partial(config.for_listener, listener)`.
    of_mechanisms = {"sasl.jaas.config", "sasl.server.callback.handler.class"}
    assert read | OF_SECURITY | of_mechanisms == PER_LISTENER


def _read_for_listener(key: str, text: str) -> bool:
    return (
        f'"{key}"' in text
        and "for_listener(" in text
        and (key == "max.connections" or (key.startswith("socket.") and "backlog" not in key))
    )


def test_what_does_nothing_is_named() -> None:
    assert without_effect(["log.preallocate", "socket.send.buffer.bytes"]) == ["log.preallocate"]


def test_what_nobody_knows_is_not_called_known() -> None:
    assert without_effect(["acme.agent.url", "num.io.threads"]) == ["num.io.threads"]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("sasl.jaas.config", "x required;"),
        ("sasl.server.callback.handler.class", "com.example.Handler"),
    ],
)
def test_a_node_that_is_to_protect_its_data_is_refused(name: str, value: str) -> None:
    config = BrokerConfig.of({"log.dirs": "/d", name: value})
    with pytest.raises(ConfigError) as refused:
        check_protection(config, lambda key: f"where {key} was set")
    assert f"{name} (where {name} was set)" in str(refused.value)
    assert "\n" not in str(refused.value)


def test_what_asks_for_nothing_is_taken() -> None:
    check_protection(
        BrokerConfig.of(
            {
                "log.dirs": "/d",
                "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
                "super.users": "User:admin",
                "allow.everyone.if.no.acl.found": "false",
                "principal.builder.class": "com.example.Builder",
                "security.inter.broker.protocol": "PLAINTEXT",
                "sasl.enabled.mechanisms": "GSSAPI",
                "sasl.mechanism.inter.broker.protocol": "GSSAPI",
                "ssl.client.auth": "none",
                "ssl.endpoint.identification.algorithm": "",
                "ssl.protocol": "TLSv1.3",
                "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_SSL:SASL_SSL",
                "quota.window.num": 12,
            }
        )
    )
