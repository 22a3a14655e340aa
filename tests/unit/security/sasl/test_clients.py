"""From a client's keys to its exchanges: classes by import path, Kafka's by their names, and nothing by JNDI."""

import sys
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from ottla.config.errors import ConfigError
from ottla.model.errors import KafkaError
from ottla.security.sasl.clients import own_class, sasl_exchanges
from ottla.security.sasl.mechanisms import SaslClient
from ottla.security.sasl.plain import PlainSaslClient

KAFKA = "org.apache.kafka.common.security"
KEY = "sasl.jaas.config"
PLAIN_JAAS = f'{KAFKA}.plain.PlainLoginModule required username="alice" password="geheim";'
KERBEROS_JAAS = "com.sun.security.auth.module.Krb5LoginModule required"

passwords: list[str] = []


def credentials() -> tuple[str, str]:
    passwords.append(f"geheim-{len(passwords)}")
    return "alice", passwords[-1]


class Credentials:
    def __call__(self) -> tuple[str, str]:
        return "class", "geheim"


def broken() -> tuple[str, str]:
    raise LookupError("geheim")


def nothing() -> None:
    return None


def login(get: Callable[[str], Any], options: Mapping[str, str]) -> Callable[[str], SaslClient]:
    return lambda host: PlainSaslClient(f"{get('client.id')}-{host}", options["password"])


def exchanges(mechanism: str, jaas: str | None = None, **settings: Any) -> Callable[[str], SaslClient]:
    given = {name.replace("_", "."): value for name, value in settings.items()}
    return sasl_exchanges(mechanism, KEY, jaas, None, given.get, {})


@pytest.mark.parametrize("named", [credentials, f"{__name__}.credentials", f"{__name__}:credentials"])
def test_a_name_and_a_password_for_each_login(named: object) -> None:
    passwords.clear()
    made = exchanges("PLAIN", sasl_client_callback_handler_class=named)
    assert [made("host").evaluate(None) for _ in range(2)] == [b"\0alice\0geheim-0", b"\0alice\0geheim-1"]
    scram = exchanges("SCRAM-SHA-256", sasl_client_callback_handler_class=named)
    assert (scram("host").evaluate(None) or b"").startswith(b"n,,n=alice,")


def test_an_instance_of_a_class_is_called() -> None:
    made = exchanges("PLAIN", sasl_client_callback_handler_class=f"{__name__}.Credentials")
    assert made("host").evaluate(None) == b"\0class\0geheim"


@pytest.mark.parametrize("named", [broken, nothing])
def test_code_of_ones_own_that_fails_is_a_login_that_fails(named: object) -> None:
    made = exchanges("PLAIN", sasl_client_callback_handler_class=named)
    exchange = made("host")
    assert exchange.is_slow
    with pytest.raises(KafkaError, match=r"sasl.client.callback.handler.class failed: \w+Error") as refused:
        exchange.evaluate(None)
    assert not exchange.complete
    assert "geheim" not in str(refused.value)


class _Failing:
    def __init__(self, *given: object) -> None:
        raise RuntimeError("geheim")


@pytest.mark.parametrize(
    ("mechanism", "key"),
    [
        ("PLAIN", "sasl_login_class"),
        ("PLAIN", "sasl_client_callback_handler_class"),
        ("OAUTHBEARER", "sasl_login_callback_handler_class"),
        ("OAUTHBEARER", "sasl_oauthbearer_jwt_retriever_class"),
    ],
)
@pytest.mark.parametrize("named", [_Failing, f"{__name__}._Failing", "tests.support.failing.X"])
def test_code_of_ones_own_that_cannot_be_had_is_one_line(mechanism: str, key: str, named: object) -> None:
    with pytest.raises(ConfigError, match="RuntimeError") as refused:
        exchanges(mechanism, **{key: named})
    assert "geheim" not in str(refused.value)
    assert str(refused.value).startswith(key.replace("_", "."))


def test_a_login_of_ones_own() -> None:
    made = exchanges("PLAIN", PLAIN_JAAS, sasl_login_class=f"{__name__}.login", client_id="me")
    assert made("there").evaluate(None) == b"\0me-there\0geheim"


def test_kafkas_names_are_what_is_there_anyway() -> None:
    made = exchanges(
        "PLAIN",
        PLAIN_JAAS,
        sasl_login_class=f"{KAFKA}.authenticator.DefaultLogin",
        sasl_client_callback_handler_class=f"{KAFKA}.authenticator.SaslClientCallbackHandler",
        sasl_login_callback_handler_class=f"{KAFKA}.authenticator.AbstractLogin$DefaultLoginCallbackHandler",
    )
    assert made("host").evaluate(None) == b"\0alice\0geheim"


@pytest.mark.parametrize(
    ("mechanism", "settings", "words"),
    [
        ("PLAIN", {"sasl_login_class": f"{KAFKA}.Something"}, "sasl.login.class: .* is not supported"),
        ("PLAIN", {"sasl_login_class": "no.such.module.Class"}, "cannot be imported"),
        ("PLAIN", {"sasl_login_class": "nothing"}, "cannot be imported"),
        ("PLAIN", {"sasl_client_callback_handler_class": f"{__name__}.missing"}, "cannot be imported"),
        ("PLAIN", {"sasl_login_callback_handler_class": "mine.Handler"}, "PLAIN has none but its own"),
        ("GSSAPI", {"sasl_client_callback_handler_class": "mine.Handler"}, "GSSAPI has none but its own"),
        ("OAUTHBEARER", {"sasl_client_callback_handler_class": "mine.Handler"}, "OAUTHBEARER has none but"),
        ("GSSAPI", {}, "sasl.kerberos.service.name is not set"),
        ("KERBEROS", {}, "KERBEROS is not supported"),
    ],
)
def test_what_cannot_be_is_told_at_once(mechanism: str, settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        exchanges(mechanism, PLAIN_JAAS if mechanism == "PLAIN" else None, **settings)


@pytest.mark.parametrize(
    "module", ["com.sun.security.auth.module.JndiLoginModule", "com.sun.security.auth.module.LdapLoginModule"]
)
@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "OAUTHBEARER", "GSSAPI"])
def test_login_modules_that_look_something_up_elsewhere_are_refused(mechanism: str, module: str) -> None:
    """CVE-2023-25194, CVE-2025-27818."""
    with pytest.raises(ConfigError, match=f"{module} is not allowed"):
        exchanges(mechanism, f'{module} required user.provider.url="ldap://elsewhere";')


def test_kerberos_without_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gssapi", None)
    with pytest.raises(ConfigError, match="GSSAPI needs the package gssapi"):
        exchanges("GSSAPI", sasl_kerberos_service_name="kafka")
    with pytest.raises(ConfigError, match="the JAAS text says other"):
        exchanges("GSSAPI", f"{KERBEROS_JAAS} serviceName=other;", sasl_kerberos_service_name="kafka")


def test_nothing_is_named() -> None:
    assert own_class("k", None, ()) is None
    assert own_class("k", "", ()) is None
