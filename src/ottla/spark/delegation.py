"""What Spark's workers log in with: a delegation token (KIP-48) that the driver asks for, never a password
(as Spark's KafkaTokenUtil and KafkaDelegationTokenProvider).

The driver's processes (Spark's planner and a stream's source runner) have the options as the user gave them. To the
tasks go the settings that `public` leaves, and a Login: the token of `login_for`, with each micro-batch's partitions
and with each write's writer. Rules:

- No password, JAAS text of a password, or private key is in anything that is pickled for tasks. A token is, which is
  the user for a day at most, and can be taken back; it is in no repr, and like the others in no message and no log.
- Spark ends Python processes that have been idle for a minute: the next one looks for the token of the last one before
  it asks for a new one. Tokens made here are known by their renewer, which is their owner and so means nothing else.
- A token is renewed when half of its time is over, and another takes its place when half of the longest time is over
  that it may last. What cannot be renewed now is tried again with the next micro-batch, until it has expired.
- A new token is tried out before tasks get it: brokers may not have heard of it yet, or have no SCRAM for it.
- Where a cluster gives no tokens, tasks log in by the properties file of `ottla.config`, which they read themselves. If
  there is none, the job is refused: nothing falls back to sending a password.

In Spark's own connector it is KafkaTokenUtil and KafkaDelegationTokenProvider, and Hadoop's credentials carry tokens.
One thread; owned by the process. What is held belongs to the process that asked for it, and not to its children.
"""

import base64
import logging
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Final, NamedTuple

from ottla.client.config import SECRET_KEYS
from ottla.client.errors import AuthenticationFailed
from ottla.client.inline import InlineClient
from ottla.client.network import Ask
from ottla.config.errors import ConfigError
from ottla.model.errors import ErrorCode, KafkaError
from ottla.security.channels import WITH_SASL
from ottla.security.sasl.mechanisms import MECHANISMS, PLAIN
from ottla.spark.connection import (
    CLIENT_ID,
    CONFIG_FILE,
    PREFIX,
    KafkaOptions,
    OptionError,
    connect,
    patient,
    settings_of,
)
from ottla.wire.messages.metadata import MetadataRequest

if TYPE_CHECKING:
    from ottla.client.admin.types import DelegationToken
    from ottla.client.blocking import Admin

# What reads stores and JAAS texts is imported where it is used: workers without SASL start without it.
JAAS_KEY: Final = "sasl.jaas.config"
TOKEN_AUTH: Final = "tokenauth"
_TRUST_PASSWORD: Final = "ssl.truststore.password"
_OF_TRUST: Final = ("ssl.truststore.", "ssl.ca.")
_OF_KEYS: Final = ("ssl.keystore.", "ssl.key.", "ssl.certificate.")
# A token is a password of SCRAM: the stronger mechanism first, as Spark's own connector has it.
_BY_STRENGTH: Final = ("SCRAM-SHA-512", "SCRAM-SHA-256")
# What says that there are no tokens to be had here; anything else is an error like any other.
_NO_TOKENS: Final = frozenset(
    {
        ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED,
        ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED,
        ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED,
        ErrorCode.INVALID_PRINCIPAL_TYPE,
        ErrorCode.UNSUPPORTED_VERSION,
    }
)
_GONE: Final = frozenset({ErrorCode.DELEGATION_TOKEN_NOT_FOUND, ErrorCode.DELEGATION_TOKEN_EXPIRED})
# How long brokers may take to hear of a token, and how often they are asked until then.
HEARD_WITHIN_S: Final = 10.0
GREETED_WITHIN_MS: Final = 3_000.0
ASKED_AGAIN_S: Final = 0.1
# Where there were none, there may be some later.
ASK_AGAIN_AFTER_MS: Final = 600_000.0
SOONEST_MS: Final = 1_000.0
MAX_HELD: Final = 64

log = logging.getLogger(__name__)


class NoTokens(Exception):
    """The cluster gives no token that tasks could log in with; the message says why."""


@dataclass(frozen=True, slots=True)
class Login:
    """A delegation token on its way to the tasks."""

    mechanism: str
    token_id: str
    hmac: str = field(repr=False)  # base64, as it is sent for a password

    def jaas(self) -> str:
        options = {"username": self.token_id, "password": self.hmac, TOKEN_AUTH: "true"}
        words = " ".join(f'{name}="{_escaped(value)}"' for name, value in options.items())
        return f"{MECHANISMS[self.mechanism].login_module} required {words};"


def _escaped(text: str) -> str:
    """As a quoted text of JAAS has it; one ends with its line."""
    quoted = text.replace("\\", "\\\\").replace('"', '\\"')
    return quoted.replace("\n", "\\n").replace("\r", "\\r")


def with_login(kafka: KafkaOptions, login: Login | None) -> KafkaOptions:
    """The settings of a client that logs in with the token; without one, they are enough as they are."""
    if login is None:
        return kafka
    kept = {key: value for key, value in kafka.client if not key.startswith("sasl.")}
    kept |= {"sasl.mechanism": login.mechanism, JAAS_KEY: login.jaas()}
    return replace(kafka, client=tuple(sorted(kept.items())), file=None)


def for_workers(kafka: KafkaOptions) -> KafkaOptions:
    """All in one: the settings that a task may have, its login included; OptionError, KafkaError."""
    return with_login(public(kafka), login_for(kafka))


# -- what may be seen -------------------------------------------------------------------------------------


@lru_cache(MAX_HELD)
def _public(client: tuple[tuple[str, str], ...], file: str | None) -> tuple[tuple[str, str], ...]:
    given = dict(client)
    settings = settings_of(KafkaOptions(client, {}, (), file))
    secrets = SECRET_KEYS & settings.keys()
    if _TRUST_PASSWORD in secrets:
        # Certificates are no secret, their store's password is one: so it is opened here.
        certificates = _certificates(settings)
        settings = {key: value for key, value in settings.items() if not key.startswith(_OF_TRUST)}
        settings |= {"ssl.truststore.type": "PEM", "ssl.truststore.certificates": certificates}
    if any(key.startswith(_OF_KEYS) for key in secrets):
        if settings.get("security.protocol") not in WITH_SASL and SECRET_KEYS & given.keys() - {
            _TRUST_PASSWORD
        }:
            raise _refused(given, "with TLS alone it would have to be sent to them")
        settings = {key: value for key, value in settings.items() if not key.startswith(_OF_KEYS)}
    return tuple(sorted((key, value) for key, value in settings.items() if key not in SECRET_KEYS))


def public(kafka: KafkaOptions) -> KafkaOptions:
    """What may stand in Spark's plan and go to the tasks: everything but secrets.

    A trust store's password is left out by sending its certificates. What a task cannot do without and may not have is
    an OptionError: a private key in the options, or the password of one.
    """
    if kafka.file is None and not SECRET_KEYS & dict(kafka.client).keys():
        return kafka
    return replace(kafka, client=_public(kafka.client, kafka.file))


def without_secrets(options: Mapping[str, str]) -> dict[str, str]:
    """A data source's options without those that nobody else may see."""
    return {
        name: value
        for name, value in options.items()
        if name.lower().removeprefix(PREFIX) not in SECRET_KEYS or not name.lower().startswith(PREFIX)
    }


def _certificates(settings: Mapping[str, str]) -> str:
    from ottla.security.tls.contexts import tls_settings
    from ottla.security.tls.stores import pem, read_trust_store

    try:
        store = tls_settings(settings.get, pem_files=True).trust_store
        trusted = read_trust_store(store).trusted if store.is_set else ()
    except ConfigError as error:
        raise OptionError(f"{PREFIX}*: {error}") from None
    return b"".join(pem(each, "CERTIFICATE") for each in trusted).decode()


def _refused(given: Mapping[str, str], why: str) -> OptionError:
    secrets = ", ".join(sorted(PREFIX + key for key in SECRET_KEYS & given.keys() - {_TRUST_PASSWORD}))
    return OptionError(
        f"Spark's workers are not given {secrets}: {why}. Put the settings into a properties file that is on every "
        f"machine, and name it with the option {CONFIG_FILE}"
    )


# -- tokens -----------------------------------------------------------------------------------------------


class _Held(NamedTuple):
    """What this process has for one set of settings."""

    login: Login | None
    token: "DelegationToken | None"
    renew_at_ms: float
    replace_at_ms: float


_held: dict[tuple[int, tuple[tuple[str, str], ...], str | None], _Held] = {}


def login_for(kafka: KafkaOptions) -> Login | None:
    """The driver's part: a token for the tasks, renewed or replaced where that is due.

    None where nobody logs in, or tasks do so by the file that they have; OptionError where they could not.
    """
    key = (os.getpid(), kafka.client, kafka.file)
    held = _held.get(key)
    now_ms = _now_ms()
    if held is None or (held.token is None and now_ms >= held.replace_at_ms):
        held = _obtained(kafka, settings_of(kafka), now_ms)
    elif now_ms >= min(held.renew_at_ms, held.replace_at_ms):
        held = _kept_up(kafka, held, now_ms)
    while len(_held) >= MAX_HELD and key not in _held:
        del _held[next(iter(_held))]
    _held[key] = held
    return held.login


def _now_ms() -> float:
    return time.time() * 1000


def _obtained(kafka: KafkaOptions, settings: Mapping[str, str], now_ms: float) -> _Held:
    if settings.get("security.protocol") not in WITH_SASL:
        return _Held(None, None, float("inf"), float("inf"))
    given = _given_token(settings)
    if given is not None:
        return _Held(given, None, float("inf"), float("inf"))
    try:
        with _admin(kafka) as admin:
            token = _found_or_made(admin, _user(settings), now_ms)
        login = _tried_out(kafka, settings, token)
    except NoTokens as refusal:
        return _without(kafka, refusal, now_ms)
    return _Held(login, token, *_dates(token, now_ms))


def _without(kafka: KafkaOptions, refusal: NoTokens, now_ms: float) -> _Held:
    """No token: the tasks log in by a file, if what is secret stands there and not in the options."""
    given = dict(kafka.client)
    if SECRET_KEYS & given.keys() - {_TRUST_PASSWORD}:
        raise _refused(
            given,
            f"they log in with delegation tokens, and {refusal} (brokers need delegation.token.secret.key)",
        )
    log.warning(
        "Spark's workers log in by themselves, with what is on their machines (%s): %s", kafka.file, refusal
    )
    again_at_ms = now_ms + ASK_AGAIN_AFTER_MS
    return _Held(None, None, again_at_ms, again_at_ms)


def _given_token(settings: Mapping[str, str]) -> Login | None:
    """A token that the user has brought along: it is theirs to renew."""
    mechanism, jaas = settings.get("sasl.mechanism", ""), settings.get(JAAS_KEY)
    if jaas is None or mechanism not in _BY_STRENGTH:
        return None
    options = _jaas_options(jaas)
    if options.get(TOKEN_AUTH, "").lower() != "true":
        return None
    return Login(mechanism, options["username"], options["password"])


def _user(settings: Mapping[str, str]) -> str | None:
    """Who this is to the brokers, where a name says so."""
    if settings.get("sasl.mechanism") not in (PLAIN, *_BY_STRENGTH):
        return None
    jaas = settings.get(JAAS_KEY)
    name = settings.get("sasl.username") if jaas is None else _jaas_options(jaas).get("username")
    return None if name is None else f"User:{name}"


def _jaas_options(jaas: str) -> Mapping[str, str]:
    """Of a text that the client's settings have been made of already."""
    from ottla.security.sasl.jaas import parse_jaas

    return parse_jaas(jaas)[0].options


def _admin(kafka: KafkaOptions) -> "Admin":
    from ottla.client.blocking import Admin

    return Admin({"client.id": CLIENT_ID, **settings_of(kafka), **patient(kafka)})


def _found_or_made(admin: "Admin", user: str | None, now_ms: float) -> "DelegationToken":
    try:
        if user is None:
            return admin.create_delegation_token()
        for token in admin.describe_delegation_tokens([user]):
            if (token.owner, token.requester, token.renewers) == (user, user, (user,)) and _lasts(
                token, now_ms
            ):
                return replace(token, expiry_timestamp_ms=admin.renew_delegation_token(token.hmac))
        return admin.create_delegation_token(renewers=[user])
    except KafkaError as error:
        if error.code in _NO_TOKENS:
            raise NoTokens(str(error)) from None
        raise


def _lasts(token: "DelegationToken", now_ms: float) -> bool:
    """Is it alive, and less than half as old as it may become?"""
    return token.expiry_timestamp_ms > now_ms < (token.issue_timestamp_ms + token.max_timestamp_ms) / 2


def _dates(token: "DelegationToken", now_ms: float) -> tuple[float, float]:
    """When to renew it, and when to have another; not at once, however far the brokers' clock is from this one."""
    left_ms = token.expiry_timestamp_ms - now_ms
    life_ms = token.max_timestamp_ms - token.issue_timestamp_ms
    renew_at_ms = now_ms + max(left_ms / 2, SOONEST_MS)
    return renew_at_ms, max(token.issue_timestamp_ms + life_ms / 2, now_ms + life_ms / 4)


def _kept_up(kafka: KafkaOptions, held: _Held, now_ms: float) -> _Held:
    """The token is renewed, or another one is there; if neither can be had now, this one is good until it expires."""
    assert held.token is not None
    try:
        if now_ms >= held.replace_at_ms:
            return _obtained(kafka, settings_of(kafka), now_ms)
        with _admin(kafka) as admin:
            until_ms = admin.renew_delegation_token(held.token.hmac)
    except OptionError as error:
        if now_ms >= held.token.expiry_timestamp_ms:
            raise
        log.warning("Spark's workers keep the token that they have: %s", error)
        return held._replace(replace_at_ms=now_ms + ASK_AGAIN_AFTER_MS)
    except KafkaError as error:
        if error.code not in _GONE and now_ms < held.token.expiry_timestamp_ms:
            log.warning("the token of Spark's workers is not renewed yet: %s", error)
            return held
        return _obtained(kafka, settings_of(kafka), now_ms)
    token = replace(held.token, expiry_timestamp_ms=until_ms)
    return held._replace(token=token, renew_at_ms=_dates(token, now_ms)[0])


def _tried_out(kafka: KafkaOptions, settings: Mapping[str, str], token: "DelegationToken") -> Login:
    """The token with a mechanism that the brokers take it by."""
    own = settings.get("sasl.mechanism", "")
    mechanisms = (own,) if own in _BY_STRENGTH else _BY_STRENGTH
    secret = base64.b64encode(token.hmac).decode()
    refusal: KafkaError | None = None
    for mechanism in mechanisms:
        login = Login(mechanism, token.token_id, secret)
        deadline_s = time.monotonic() + HEARD_WITHIN_S
        while True:
            try:
                with connect(with_login(public(kafka), login), **patient(kafka)) as client:
                    _greet_all(client)
            except AuthenticationFailed as error:
                refusal = error
                if error.code is not ErrorCode.SASL_AUTHENTICATION_FAILED or time.monotonic() > deadline_s:
                    break
                time.sleep(ASKED_AGAIN_S)  # the broker asked may not have heard of the token yet
            else:
                return login
    raise NoTokens(f"the cluster gave a token and does not take it: {refusal}")


def _greet_all(client: InlineClient) -> None:
    """Log in to each broker, for each has to have heard of the token. One that is away does not matter here."""
    nothing = MetadataRequest(topics=[], allow_auto_topic_creation=False)
    brokers = client.core.metadata.nodes
    client.ask_all([Ask(nothing, node_id, lambda answer: answer) for node_id in brokers], GREETED_WITHIN_MS)
