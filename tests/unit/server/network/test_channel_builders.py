"""What a listener's keys come to, and the one line about what is wrong with them."""

import asyncio
import ssl
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.support.certificates import Authority, Identity

from ottla.config.broker import BrokerConfig
from ottla.config.errors import ConfigError
from ottla.model.clock import SystemClock
from ottla.model.errors import KafkaError
from ottla.security.principal import KafkaPrincipal
from ottla.security.sasl.mechanisms import SaslError
from ottla.security.sasl.oauth.http import ALLOWED_URLS
from ottla.security.sasl.oauthbearer import InvalidTokenError, OAuthToken
from ottla.security.sasl.scram import ScramToken
from ottla.security.scram_credentials import Mechanism, ScramCredential, credential_of
from ottla.server.network import channel_builders
from ottla.server.network.channel_builders import (
    ListenerSasl,
    ListenerTls,
    mechanism_getter,
    node_channels,
    renew_node_channels,
)
from ottla.server.network.socket_server import SocketServer

PLAIN_JAAS = (
    "org.apache.kafka.common.security.plain.PlainLoginModule required "
    'username="admin" password="geheim" user_admin="geheim";'
)
JAAS_KEY = "listener.name.in.plain.sasl.jaas.config"


def config(protocol: str, **more: object) -> BrokerConfig:
    settings = {name.replace("__", "-").replace("_", "."): value for name, value in more.items()}
    return BrokerConfig.of(
        {
            "log.dirs": "/nowhere",
            "listeners": "IN://127.0.0.1:0,CONTROLLER://127.0.0.1:0",
            "controller.listener.names": "CONTROLLER",
            "inter.broker.listener.name": "IN",
            "listener.security.protocol.map": f"IN:{protocol},CONTROLLER:PLAINTEXT",
            **settings,
        }
    )


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("tls"))


def stores(authority: Authority, where: Path) -> dict[str, object]:
    identity = authority.issue()
    key_store = where / "node.pem"
    key_store.write_bytes(identity.key.read_bytes() + identity.certificate.read_bytes())
    return {
        "ssl_keystore_type": "PEM",
        "ssl_keystore_location": key_store,
        "ssl_truststore_type": "PEM",
        "ssl_truststore_location": authority.certificate,
    }


class Users:
    """One of them."""

    def user(self, mechanism: Mechanism, name: str) -> ScramCredential | None:
        return credential_of(mechanism, "pencil", b"salt", 4096) if name == "bob" else None

    def token(self, mechanism: Mechanism, token_id: str) -> ScramToken | None:
        return None

    def unknown_secret(self) -> bytes:
        return b"cluster"

    def unknown_iterations(self, mechanism: Mechanism) -> int:
        return 4096


def sasl(made: BrokerConfig) -> ListenerSasl:
    return ListenerSasl(made, "IN", Users(), SystemClock())


def test_a_certificates_name_is_a_user_by_the_rules(authority: Authority, tmp_path: Path) -> None:
    alice = ssl.PEM_cert_to_DER_cert(authority.issue("alice").certificate.read_text())
    keys = stores(authority, tmp_path)
    assert ListenerTls(config("SSL", **keys), "IN").principal_of(alice) == KafkaPrincipal("User", "CN=alice")
    rules = {"listener.name.in.ssl.principal.mapping.rules": "RULE:^CN=(a.*)$/$1/U"}
    made = ListenerTls(config("SSL", **keys, **rules), "IN")
    assert made.principal_of(alice) == KafkaPrincipal("User", "ALICE")
    bob = ssl.PEM_cert_to_DER_cert(authority.issue("bob").certificate.read_text())
    for nobody in (bob, b"no certificate"):
        with pytest.raises(KafkaError):
            made.principal_of(nobody)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({}, "listener IN: ssl.keystore.location: a listener with TLS needs a key"),
        ({"ssl_keystore_location": "/no/such/file"}, "listener IN: "),
        ({"ssl_keystore_location": "/no/such/file", "ssl_keystore_password": "geheim"}, "listener IN: "),
    ],
)
def test_a_listener_without_a_key_does_not_start(settings: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError, match=words) as refused:
        ListenerTls(config("SSL", **settings), "IN")
    assert "geheim" not in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("protocol", "settings", "wanted"),
    [
        ("SSL", {"ssl_client_auth": "required"}, ssl.CERT_REQUIRED),
        ("SASL_SSL", {}, ssl.CERT_NONE),
        # A node's setting is for SSL; who logs in by SASL shows a certificate where the listener asks (KIP-684).
        ("SASL_SSL", {"ssl_client_auth": "required"}, ssl.CERT_NONE),
        ("SASL_SSL", {"listener.name.in.ssl.client.auth": "required"}, ssl.CERT_REQUIRED),
        (
            "SASL_SSL",
            {"ssl_client_auth": "required", "listener.name.in.ssl.client.auth": "requested"},
            ssl.CERT_OPTIONAL,
        ),
    ],
)
def test_whom_a_listener_asks_for_a_certificate(
    authority: Authority,
    tmp_path: Path,
    protocol: str,
    settings: dict[str, object],
    wanted: ssl.VerifyMode,
) -> None:
    made = ListenerTls(config(protocol, **stores(authority, tmp_path), **settings), "IN")
    assert made.context.verify_mode is wanted


def test_each_mechanism_has_its_users() -> None:
    made = sasl(
        config(
            "SASL_PLAINTEXT",
            sasl_enabled_mechanisms="PLAIN,SCRAM-SHA-256",
            connections_max_reauth_ms=1000,
            **{JAAS_KEY: PLAIN_JAAS, "listener.name.in.plain.connections.max.reauth.ms": "7"},
        )
    )
    assert made.mechanisms == ("PLAIN", "SCRAM-SHA-256")
    assert (made.max_reauth_ms("PLAIN"), made.max_reauth_ms("SCRAM-SHA-256")) == (7, 1000)
    assert (made.max_receive_bytes, made.failed_delay_ms) == (524_288, 100)
    exchange = made.server("PLAIN")
    exchange.evaluate(b"\0admin\0geheim")
    assert made.principal_of("PLAIN", exchange) == KafkaPrincipal("User", "admin")
    assert b"i=4096" in made.server("SCRAM-SHA-256").evaluate(b"n,,n=bob,r=nonce")


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"sasl_enabled_mechanisms": "PLAIN"}, f"{JAAS_KEY} is not set"),
        (
            {"sasl_enabled_mechanisms": "DIGEST-MD5"},
            "DIGEST-MD5 is not served; PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, OAUTHBEARER, GSSAPI are",
        ),
        ({"sasl_enabled_mechanisms": "PLAIN", JAAS_KEY: "x.y.Z required;"}, f"{JAAS_KEY}: "),
        ({"sasl_enabled_mechanisms": "PLAIN", JAAS_KEY: PLAIN_JAAS.rstrip(";")}, f"{JAAS_KEY}: "),
    ],
)
def test_a_mechanism_that_cannot_work_keeps_the_node_from_starting(
    settings: dict[str, object], words: str
) -> None:
    with pytest.raises(ConfigError, match="listener IN: ") as refused:
        sasl(config("SASL_PLAINTEXT", **settings))
    assert words in str(refused.value)
    assert "geheim" not in str(refused.value)


def test_nodes_reach_one_another_as_their_listeners_say(authority: Authority, tmp_path: Path) -> None:
    keys = stores(authority, tmp_path)
    plain = node_channels(config("PLAINTEXT"))
    assert (plain.brokers.ssl_context, plain.brokers.new_exchange) == (None, None)
    tls = node_channels(config("SSL", **keys))
    assert tls.controllers.ssl_context is None
    assert tls.brokers.ssl_context is not None
    assert tls.brokers.new_exchange is None
    both = node_channels(
        config("SASL_SSL", **keys, sasl_mechanism_inter_broker_protocol="PLAIN", **{JAAS_KEY: PLAIN_JAAS})
    )
    assert both.brokers.mechanism == "PLAIN"
    assert both.brokers.new_exchange is not None
    assert both.brokers.new_exchange("host").evaluate(None) == b"\0admin\0geheim"
    assert "geheim" not in repr(both)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({}, "sasl.kerberos.service.name is not set"),
        ({"sasl_mechanism_inter_broker_protocol": "PLAIN"}, f"{JAAS_KEY} is not set"),
    ],
)
def test_nodes_that_cannot_reach_one_another_do_not_start(settings: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError, match="connections to listener IN of other nodes: ") as refused:
        node_channels(config("SASL_PLAINTEXT", **settings))
    assert words in str(refused.value)


def test_no_more_logins_wait_for_a_thread_than_there_is_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel_builders, "MAX_SASL_STEPS", 6)
    may_end = threading.Event()

    def step() -> bytes:
        assert may_end.wait(30)
        return b"done"

    async def scenario() -> None:
        made = sasl(config("SASL_PLAINTEXT", sasl_enabled_mechanisms="SCRAM-SHA-256"))
        waiting = [asyncio.create_task(made.in_thread(step)) for _ in range(6)]
        await asyncio.sleep(0)
        with pytest.raises(KafkaError, match="too many logins wait"):
            await made.in_thread(step)
        may_end.set()
        assert [await each for each in waiting] == [b"done"] * 6
        assert await made.in_thread(step) == b"done"
        made.close()

    asyncio.run(scenario())


def test_a_slow_step_is_made_in_a_thread() -> None:
    async def work() -> bytes:
        made = sasl(config("SASL_PLAINTEXT", sasl_enabled_mechanisms="SCRAM-SHA-256"))
        try:
            return await made.in_thread(lambda: b"done")
        finally:
            made.close()

    assert asyncio.run(work()) == b"done"


OAUTH = {"sasl_enabled_mechanisms": "OAUTHBEARER"}
HANDLER = "sasl.server.callback.handler.class"


def known(name: str, password: str) -> bool:
    return (name, password) == ("alice", "geheim")


class Known:
    def __call__(self, name: str, password: str) -> bool:
        return known(name, password)


def validate(token: str) -> OAuthToken:
    if token != "good":
        raise InvalidTokenError("bad")
    return OAuthToken("alice", 9_999_999_999_999)


def believe_nothing(token: str) -> object:
    return "alice"


@pytest.mark.parametrize("named", ["known", "Known"])
def test_users_of_plain_by_code_of_ones_own(named: str) -> None:
    key = f"listener.name.in.plain.{HANDLER}"
    made = sasl(config("SASL_PLAINTEXT", sasl_enabled_mechanisms="PLAIN", **{key: f"{__name__}.{named}"}))
    exchange = made.server("PLAIN")
    assert exchange.is_slow, "nobody knows what it waits for"
    exchange.evaluate(b"\0alice\0geheim")
    assert made.principal_of("PLAIN", exchange) == KafkaPrincipal("User", "alice")
    with pytest.raises(SaslError):
        made.server("PLAIN").evaluate(b"\0alice\0other")


@pytest.mark.parametrize(
    "key", [f"listener.name.in.oauthbearer.{HANDLER}", "sasl.oauthbearer.jwt.validator.class"]
)
def test_tokens_by_code_of_ones_own(key: str) -> None:
    made = sasl(config("SASL_PLAINTEXT", **OAUTH, **{key: f"{__name__}:validate"}))
    exchange = made.server("OAUTHBEARER")
    exchange.evaluate(b"n,,\x01auth=Bearer good\x01\x01")
    assert made.principal_of("OAUTHBEARER", exchange) == KafkaPrincipal("User", "alice")
    assert made.server("OAUTHBEARER").evaluate(b"n,,\x01auth=Bearer bad\x01\x01")
    lax = sasl(config("SASL_PLAINTEXT", **OAUTH, **{key: f"{__name__}:believe_nothing"}))
    with pytest.raises(SaslError):
        lax.server("OAUTHBEARER").evaluate(b"n,,\x01auth=Bearer good\x01\x01")


class Failing:
    """Somebody's own code, whose words are about a secret."""

    def __init__(self, *given: object) -> None:
        raise RuntimeError("geheim")


@pytest.mark.parametrize(
    "settings",
    [
        {"sasl_enabled_mechanisms": "PLAIN", f"listener.name.in.plain.{HANDLER}": f"{__name__}.Failing"},
        {**OAUTH, f"listener.name.in.oauthbearer.{HANDLER}": f"{__name__}.Failing"},
        {**OAUTH, "sasl.oauthbearer.jwt.validator.class": f"{__name__}:Failing"},
        {"sasl_enabled_mechanisms": "PLAIN", f"listener.name.in.plain.{HANDLER}": "tests.support.failing.X"},
    ],
)
def test_code_of_ones_own_that_fails_keeps_the_node_from_starting_in_one_line(
    settings: dict[str, object],
) -> None:
    with pytest.raises(ConfigError, match="RuntimeError") as refused:
        sasl(config("SASL_PLAINTEXT", **settings))
    assert "geheim" not in str(refused.value)
    assert ".class" in str(refused.value)


KAFKAS_OAUTH = "org.apache.kafka.common.security.oauthbearer"


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (OAUTH, "sasl.oauthbearer.jwks.endpoint.url is not set"),
        ({**OAUTH, "sasl.oauthbearer.jwks.endpoint.url": "https://idp/keys"}, ALLOWED_URLS),
        (
            {**OAUTH, "sasl.oauthbearer.jwt.validator.class": f"{KAFKAS_OAUTH}.ClientJwtValidator"},
            "not supported",
        ),
        (
            {
                **OAUTH,
                f"listener.name.in.oauthbearer.{HANDLER}": (
                    f"{KAFKAS_OAUTH}.internals.unsecured.OAuthBearerUnsecuredValidatorCallbackHandler"
                ),
            },
            "not supported",
        ),
        ({**OAUTH, f"listener.name.in.{HANDLER}": "mine.Handler"}, "is for one mechanism of a listener"),
        (
            {
                "sasl_enabled_mechanisms": "SCRAM-SHA-256",
                f"listener.name.in.scram-sha-256.{HANDLER}": f"{__name__}.known",
            },
            "SCRAM-SHA-256 has none but its own",
        ),
        (
            {"sasl_enabled_mechanisms": "PLAIN", f"listener.name.in.plain.{HANDLER}": "no.such.Class"},
            "cannot be imported",
        ),
    ],
)
def test_a_listener_that_would_believe_anybody_does_not_open(settings: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError, match="listener IN: ") as refused:
        sasl(config("SASL_PLAINTEXT", **settings))
    assert words in str(refused.value)
    assert "\n" not in str(refused.value)


def test_kerberos_without_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gssapi", None)
    with pytest.raises(ConfigError, match="listener IN: GSSAPI needs the package gssapi"):
        sasl(config("SASL_PLAINTEXT", sasl_enabled_mechanisms="GSSAPI"))


def test_a_setting_of_a_mechanism_wins_over_the_listeners_and_that_over_the_nodes() -> None:
    key = "sasl.oauthbearer.clock.skew.seconds"
    made = config("SASL_PLAINTEXT", **{key: 1, f"listener.name.in.{key}": 2})
    assert mechanism_getter(made, "IN", "OAUTHBEARER")(key) == 2
    assert mechanism_getter(made, "CONTROLLER", "OAUTHBEARER")(key) == 1
    made = config("SASL_PLAINTEXT", **{key: 1, f"listener.name.in.oauthbearer.{key}": "3"})
    assert mechanism_getter(made, "IN", "OAUTHBEARER")(key) == 3
    assert mechanism_getter(made, "IN", "OAUTHBEARER")("sasl.oauthbearer.header.urlencode") is None


# ---- stores that change while the node runs ---------------------------------------------------------------------


def write_store(path: Path, identity: Identity) -> None:
    path.write_bytes(identity.key.read_bytes() + identity.certificate.read_bytes())


def with_stores(made: BrokerConfig, **names: object) -> BrokerConfig:
    """With stores of the listener that were set while the broker runs."""
    prefix = "listener.name.in.ssl."
    return made.with_layers({}, {prefix + key.replace("_", "."): str(value) for key, value in names.items()})


def test_a_listener_takes_what_was_written_again(authority: Authority, tmp_path: Path) -> None:
    made = config("SSL", **stores(authority, tmp_path))
    identity = ListenerTls(made, "IN")
    assert identity.renewed(made) is None
    new = authority.issue()
    write_store(tmp_path / "node.pem", new)
    renewed = identity.renewed(made)
    assert renewed is not None
    assert renewed.certificate.serial != identity.certificate.serial
    assert renewed.context is not identity.context
    assert renewed.renewed(made) is None


def test_a_listener_takes_other_stores(authority: Authority, tmp_path: Path) -> None:
    made = config("SSL", **stores(authority, tmp_path))
    identity = ListenerTls(made, "IN")
    write_store(tmp_path / "next.pem", authority.issue())
    renewed = identity.renewed(with_stores(made, keystore_location=tmp_path / "next.pem"))
    assert renewed is not None
    assert renewed.renewed(with_stores(made, keystore_location=tmp_path / "next.pem")) is None
    # What was set is taken back.
    assert renewed.renewed(made) is not None


def test_what_is_no_store_stays_until_the_node_restarts(authority: Authority, tmp_path: Path) -> None:
    made = config("SSL", **stores(authority, tmp_path), ssl_client_auth="required")
    identity = ListenerTls(made, "IN")
    weaker = with_stores(made, client_auth="none")
    assert weaker.for_listener("IN", "ssl.client.auth") == "none"
    assert identity.renewed(weaker) is None
    write_store(tmp_path / "node.pem", authority.issue())
    renewed = identity.renewed(weaker)
    assert renewed is not None
    assert renewed.context.verify_mode is ssl.CERT_REQUIRED


@pytest.mark.parametrize(
    ("next_one", "allowed", "words"),
    [
        ({"common_name": "other"}, "dn", "Keystore DistinguishedName does not match"),
        ({"hosts": ("localhost",)}, "san", "Keystore SubjectAltNames do not match"),
    ],
)
def test_names_stay_unless_they_may_change(
    authority: Authority, tmp_path: Path, next_one: dict[str, object], allowed: str, words: str
) -> None:
    keys = stores(authority, tmp_path)
    strict = ListenerTls(config("SSL", **keys), "IN")
    loose_config = config("SSL", **keys, **{f"ssl.allow.{allowed}.changes": "true"})
    loose = ListenerTls(loose_config, "IN")
    write_store(tmp_path / "node.pem", authority.issue(**next_one))  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=f"listener IN: {words}"):
        strict.renewed(config("SSL", **keys))
    assert loose.renewed(loose_config) is not None
    # Before it serves nobody knows the old one.
    assert strict.renewed(config("SSL", **keys), is_serving=False) is not None


def test_brokers_go_on_trusting_one_another(authority: Authority, tmp_path: Path) -> None:
    foreign = Authority(tmp_path / "foreign", "Foreign")
    made = config("SSL", **stores(authority, tmp_path))
    identity = ListenerTls(made, "IN")
    write_store(tmp_path / "foreign.pem", foreign.issue())
    strange = with_stores(made, keystore_location=tmp_path / "foreign.pem")
    with pytest.raises(ConfigError, match="a broker with the old stores would not reach one with the new"):
        identity.renewed(strange)
    # Both at once is no better: those that have the old ones would be left.
    both = with_stores(
        made, keystore_location=tmp_path / "foreign.pem", truststore_location=foreign.certificate
    )
    with pytest.raises(ConfigError, match="a broker with the new stores would not reach one with the old"):
        identity.renewed(both)


def test_stores_that_have_expired_can_be_replaced(authority: Authority, tmp_path: Path) -> None:
    made = config("SSL", **stores(authority, tmp_path))
    write_store(tmp_path / "node.pem", authority.issue(days=-1))
    identity = ListenerTls(made, "IN")
    # By those with which brokers reach one another, that is.
    write_store(tmp_path / "node.pem", Authority(tmp_path / "foreign", "Foreign").issue())
    with pytest.raises(ConfigError, match="a broker with the new stores would not reach one with the old"):
        identity.renewed(made)
    write_store(tmp_path / "node.pem", authority.issue())
    renewed = identity.renewed(made)
    assert renewed is not None
    assert renewed.certificate.not_after > identity.certificate.not_after


def test_a_trust_store_cannot_be_added_while_it_runs(authority: Authority, tmp_path: Path) -> None:
    keys = stores(authority, tmp_path)
    without = {key: value for key, value in keys.items() if "truststore" not in key}
    made = BrokerConfig.of(
        {
            "log.dirs": "/nowhere",
            "listeners": "IN://127.0.0.1:0,OUT://127.0.0.1:0,CONTROLLER://127.0.0.1:0",
            "controller.listener.names": "CONTROLLER",
            "inter.broker.listener.name": "OUT",
            "listener.security.protocol.map": "IN:SSL,OUT:PLAINTEXT,CONTROLLER:PLAINTEXT",
            **{name.replace("_", "."): value for name, value in without.items()},
        }
    )
    identity = ListenerTls(made, "IN")
    trusting = with_stores(made, truststore_location=authority.certificate, truststore_type="PEM")
    with pytest.raises(ConfigError, match="Cannot add SSL truststore"):
        identity.renewed(trusting)


@pytest.mark.parametrize("content", [None, b"", b"garbage", b"\xfe\xed\xfe\xed", b"\x30\x82"])
def test_what_is_no_store_is_one_line(authority: Authority, tmp_path: Path, content: bytes | None) -> None:
    made = config("SSL", **stores(authority, tmp_path))
    identity = ListenerTls(made, "IN")
    path = tmp_path / "node.pem"
    path.unlink()
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError, match=r"listener IN: ssl\.keystore\.location") as refused:
        identity.renewed(made)
    assert "\n" not in str(refused.value)


def test_connections_to_other_nodes_take_new_stores(authority: Authority, tmp_path: Path) -> None:
    made = config("SSL", **stores(authority, tmp_path))
    channels = node_channels(made)
    before = channels.brokers.current_context()
    renew_node_channels(channels, made)
    assert channels.brokers.current_context() is before
    write_store(tmp_path / "node.pem", authority.issue())
    renew_node_channels(channels, made)
    assert channels.brokers.current_context() not in (None, before)
    assert channels.controllers.current_context() is None
    after = channels.brokers.current_context()
    (tmp_path / "node.pem").write_bytes(b"garbage")
    with pytest.raises(ConfigError, match="connections to listener IN of other nodes: "):
        renew_node_channels(channels, made)
    assert channels.brokers.current_context() is after


class Stores:
    """A listener's, of which those of the first configuration are read for long."""

    def __init__(self, of: BrokerConfig | None, slow: BrokerConfig) -> None:
        self.of = of
        self._slow = slow
        self.is_read, self.may_end = threading.Event(), threading.Event()
        self.certificate = SimpleNamespace(name="CN=node", not_after="later")

    def renewed(self, config: BrokerConfig, *, is_serving: bool = True) -> "Stores":
        self.is_read.set()
        assert config is not self._slow or self.may_end.wait(30)
        return Stores(config, self._slow)


def test_stores_that_are_read_for_long_do_not_take_the_place_of_newer_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before, after = config("PLAINTEXT"), config("PLAINTEXT")
    first = Stores(None, before)
    server: Any = SocketServer(before, clock=SystemClock())
    server._identities = {"IN": first}
    server._hosts = {"IN": SimpleNamespace(tls=SimpleNamespace(identity=first))}
    monkeypatch.setattr(
        "ottla.server.network.socket_server.replace", lambda old, **new: SimpleNamespace(**new)
    )

    async def scenario() -> None:
        slow = asyncio.create_task(server.reconfigure(before))
        await asyncio.to_thread(first.is_read.wait, 30)
        await server.reconfigure(after)
        first.may_end.set()
        await slow

    asyncio.run(scenario())
    assert server._hosts["IN"].tls.identity.of is after
    assert server._identities["IN"].of is after


# ---- limits of addresses ----------------------------------------------------------------------------------------


def test_addresses_have_their_own_limits_by_any_spelling_and_by_the_names_of_hosts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def found(host: str, port: object) -> list[Any]:
        if host == "db":
            return [(0, 0, 0, "", ("10.0.0.7", 0)), (0, 0, 0, "", ("2001:db8::7", 0, 0, 0))]
        raise OSError("no such host")

    def limits(server: SocketServer, *addresses: str) -> list[int]:
        return [server.connections.limits.for_ip(address) for address in addresses]

    def overridden(text: str) -> BrokerConfig:
        return config("PLAINTEXT", max_connections_per_ip=1, max_connections_per_ip_overrides=text)

    async def scenario() -> None:
        monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", found)
        server = SocketServer(overridden("2001:DB8:0::1:5, 10.0.0.1:6"), clock=SystemClock())
        assert limits(server, "2001:db8::1", "10.0.0.1", "10.0.0.7") == [5, 6, 1]
        # Whoever brings other settings does not wait for the hosts in them.
        await server.reconfigure(overridden("nowhere:9,db:7,10.0.0.7:8"))
        assert limits(server, "2001:db8::7", "10.0.0.1") == [1, 1]
        while server._finding_hosts is not None:
            await asyncio.sleep(0)
        # What is said of the address itself counts.
        assert limits(server, "2001:db8::7", "10.0.0.7") == [7, 8]
        await server.reconfigure(overridden("db:3"))
        assert limits(server, "2001:db8::7", "10.0.0.7") == [3, 3]

    asyncio.run(scenario())
