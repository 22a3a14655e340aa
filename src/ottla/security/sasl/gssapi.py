"""GSSAPI (RFC 4752): Kerberos tickets, and an agreement that the connection itself stays as it is.

When both sides know each other, the server offers security layers and the client chooses one; Kafka's connections have
none but TLS, so `auth` is all that is offered and chosen, in the messages of Java's GssKrb5Server and GssKrb5Client.

Rules: who a client is says its ticket, and nothing that it asks to be, which Kafka does not look at either: clients
write into it what they like. A context waits for the KDC and reads key tables, so an exchange is slow. The package
gssapi (extra `kerberos`) is imported when the first context is made; exchanges need a context only.
"""

from collections.abc import Callable
from typing import Any, ClassVar, Final, NamedTuple, Protocol, TypeVar

from ottla.config.errors import ConfigError
from ottla.model.install import install
from ottla.security.sasl.jaas import JaasEntry, check_mechanism
from ottla.security.sasl.kerberos import KerberosName, KerberosShortNamer, NoMatchingRule, parse_kerberos_name
from ottla.security.sasl.mechanisms import GSSAPI, SaslError

# A ticket with many groups in it is the longest.
MAX_TOKEN_BYTES: Final = 1 << 17
# Kerberos needs two.
MAX_ROUNDS: Final = 10
# The only layer: none.
QOP_AUTH: Final = 1
# What Java says that it can take, though there is no layer that would send it.
MAX_BUFFER_BYTES: Final = 1 << 16
_LAYERS_BYTES: Final = 4

# KerberosError: a client, or its ticket, that is not valid yet; a request that looks like a replay.
_RETRIABLE: Final = (21, 33, 34)
_KRB5_ERROR_BASE: Final = -1765328384
# Between a logout and the next login a client has no ticket.
_NO_CREDENTIAL: Final = 7
_ROUTINE_ERROR_SHIFT: Final = 16


class Unwrapped(Protocol):
    @property
    def message(self) -> bytes: ...


class GssContext(Protocol):
    """What is asked of a security context: gssapi.SecurityContext has it."""

    @property
    def complete(self) -> bool: ...
    @property
    def initiator_name(self) -> object: ...
    def step(self, token: bytes | None = None) -> bytes | None: ...
    def wrap(self, message: bytes, encrypt: bool) -> Unwrapped: ...
    def unwrap(self, message: bytes) -> Unwrapped: ...


class GssapiSaslServer:
    """One exchange of the broker's side (GssKrb5Server); the user's name is what the rules make of the ticket's."""

    is_slow: ClassVar[bool] = True

    def __init__(self, context: Callable[[], GssContext], short_namer: KerberosShortNamer) -> None:
        """`context` is made with the first message, in a thread."""
        self.complete = False
        self.authorization_id = ""
        self.token_authenticated = False
        self.expires_at_ms: int | None = None
        # The whole name, of which the rules make the user's.
        self.kerberos_name: KerberosName | None = None
        self._new_context = context
        self._short_namer = short_namer
        self._rounds = 0
        self._step = self._first

    def evaluate(self, response: bytes) -> bytes:
        # The exchange is over unless the step says what comes next.
        step, self._step = self._step, self._over
        if len(response) > MAX_TOKEN_BYTES:
            raise _error(f"a token of {len(response)} bytes")
        return step(response)

    def _over(self, response: bytes) -> bytes:
        raise _error("a token after the end of the exchange")

    def _first(self, response: bytes) -> bytes:
        self._context = self._new_context()
        return self._accept(response)

    def _accept(self, response: bytes) -> bytes:
        token, complete = _call("GSS accept", lambda: (self._context.step(response), self._context.complete))
        if complete:
            if not token:
                return self._offer_layers(b"")
            self._step = self._offer_layers
            return token
        self._rounds += 1
        if self._rounds == MAX_ROUNDS or not token:
            raise _error("a client whose ticket is never accepted")
        self._step = self._accept
        return token

    def _offer_layers(self, response: bytes) -> bytes:
        if response:
            raise _error("a token where none is expected")
        layers = bytes([QOP_AUTH]) + MAX_BUFFER_BYTES.to_bytes(_LAYERS_BYTES - 1)
        self._step = self._layer_chosen
        return _call("GSS wrap", lambda: self._context.wrap(layers, False).message)

    def _layer_chosen(self, response: bytes) -> bytes:
        chosen = _call("GSS unwrap", lambda: self._context.unwrap(response).message)
        if len(chosen) < _LAYERS_BYTES or chosen[0] != QOP_AUTH:
            raise _error("a client that has chosen another protection than auth")
        full_name = _call("GSS name", lambda: str(self._context.initiator_name))
        try:
            self.kerberos_name = parse_kerberos_name(full_name)
            name = self._short_namer.short_name(self.kerberos_name)
        except (NoMatchingRule, ValueError) as error:
            raise _error(str(error)) from None
        if not name:
            raise _error(f"the rules make no name of {full_name!r}")
        self.authorization_id = name
        self.complete = True
        return b""


class GssapiSaslClient:
    """One exchange of the client's side (GssKrb5Client)."""

    is_slow: ClassVar[bool] = True

    def __init__(self, context: GssContext) -> None:
        self.complete = False
        self._context = context
        self._rounds = 0
        self._step: Callable[[bytes], bytes] = self._initiate

    def evaluate(self, challenge: bytes | None) -> bytes | None:
        step, self._step = self._step, self._over
        if len(challenge or b"") > MAX_TOKEN_BYTES:
            raise _client_error(f"a token of {len(challenge or b'')} bytes")
        return step(challenge or b"")

    def _over(self, challenge: bytes) -> bytes:
        raise _client_error("a token after the end of the exchange")

    def _initiate(self, challenge: bytes) -> bytes:
        token, complete = _call(
            "GSS initiate",
            lambda: (self._context.step(challenge or None), self._context.complete),
            _client_error,
        )
        self._next(self._choose_layer if complete else self._initiate)
        # Where the client has the last word, the server waits for it, though it is empty.
        return token or b""

    def _next(self, step: Callable[[bytes], bytes]) -> None:
        self._rounds += 1
        if self._rounds > MAX_ROUNDS:
            raise _client_error("a server that never comes to an end")
        self._step = step

    def _choose_layer(self, challenge: bytes) -> bytes:
        if not challenge:
            self._next(self._choose_layer)
            return b""
        offered = _call("GSS unwrap", lambda: self._context.unwrap(challenge).message, _client_error)
        if len(offered) < _LAYERS_BYTES or not offered[0] & QOP_AUTH:
            raise _client_error("No common protection layer between client and server")
        layer = bytes([QOP_AUTH]) + MAX_BUFFER_BYTES.to_bytes(_LAYERS_BYTES - 1)
        message = _call("GSS wrap", lambda: self._context.wrap(layer, False).message, _client_error)
        self.complete = True
        return message


def _error(reason: str, retriable: bool = False) -> SaslError:
    return SaslError(GSSAPI, reason, retriable=retriable)


def _client_error(reason: str, retriable: bool = False) -> SaslError:
    return SaslError(GSSAPI, reason, f"{GSSAPI} with the server failed: {reason}", retriable=retriable)


_T = TypeVar("_T")


def _call(what: str, function: Callable[[], _T], failed: Callable[[str, bool], SaslError] = _error) -> _T:
    """Whatever a library of another language makes of a peer's bytes is this exchange's failure."""
    try:
        return function()
    except Exception as error:
        retriable = _is_retriable(error, client=failed is _client_error)
        raise failed(f"{what} failed: {error}", retriable) from error


def _is_retriable(error: Exception, *, client: bool) -> bool:
    minor, major = getattr(error, "min_code", None), getattr(error, "maj_code", None)
    codes = {(_KRB5_ERROR_BASE + code) & 0xFFFFFFFF for code in _RETRIABLE}
    if isinstance(minor, int) and minor & 0xFFFFFFFF in codes:
        return True
    return client and isinstance(major, int) and major >> _ROUTINE_ERROR_SHIFT & 0xFF == _NO_CREDENTIAL


def require_package() -> None:
    """ConfigError if gssapi is not installed."""
    _package()


def default_realm() -> str:
    """Of this machine; none if Kerberos does not know it, as in Kafka."""
    gssapi = _package()
    try:
        name = gssapi.Name("ottla", gssapi.NameType.kerberos_principal)
        return str(name.canonicalize(gssapi.MechType.kerberos)).rpartition("@")[2]
    except gssapi.exceptions.GSSError:
        return ""


class KerberosLogin(NamedTuple):
    """What a JAAS text says of a Kerberos login (Krb5LoginModule); None where MIT's library is to find it itself."""

    principal: str | None
    keytab: str | None
    ticket_cache: str | None
    service_name: str | None


NO_LOGIN: Final = KerberosLogin(None, None, None, None)
# Of a broker that takes tickets for all whose keys it has.
ANY_PRINCIPAL: Final = "*"


def kerberos_login(entry: JaasEntry) -> KerberosLogin:
    check_mechanism(entry, GSSAPI)
    options = entry.options

    def asked(option: str) -> bool:
        return options.get(option, "").lower() == "true"

    keytab = options.get("keyTab", "").removeprefix("FILE:") or None
    if asked("useKeyTab") and keytab is None:
        raise ConfigError("JAAS config has useKeyTab and no keyTab", "sasl.jaas.config")
    return KerberosLogin(
        options.get("principal") or None,
        keytab if asked("useKeyTab") else None,
        options.get("ticketCache") or None if asked("useTicketCache") else None,
        options.get("serviceName") or None,
    )


def accept_context(login: KerberosLogin) -> GssContext:
    """A broker's context, for one exchange. Reads the key table; SaslError if it cannot be used."""
    gssapi = _package()
    store = None if login.keytab is None else {"keytab": login.keytab}
    if login.principal == ANY_PRINCIPAL:
        login = login._replace(principal=None)

    def made() -> GssContext:
        credentials = _credentials(gssapi, login, "accept", store)
        context: GssContext = gssapi.SecurityContext(creds=credentials, usage="accept")
        return context

    return _call("Kerberos login", made)


def initiate_context(login: KerberosLogin, service_name: str, host: str) -> GssContext:
    """A client's context, for one exchange with the broker at `host`, which has to prove itself too; SaslError."""
    gssapi = _package()
    # Tickets of a key table stay in this process: the user's cache is the user's. The library renews them by itself.
    own_cache = None if login.keytab is None else f"MEMORY:ottla-{login.principal or ''}-{login.keytab}"
    files = {"client_keytab": login.keytab, "ccache": login.ticket_cache or own_cache}
    store = {key: path for key, path in files.items() if path is not None} or None

    def made() -> GssContext:
        context: GssContext = gssapi.SecurityContext(
            name=gssapi.Name(f"{service_name}@{host}", gssapi.NameType.hostbased_service),
            creds=_credentials(gssapi, login, "initiate", store),
            usage="initiate",
            mech=gssapi.MechType.kerberos,
            flags=gssapi.RequirementFlag.mutual_authentication | gssapi.RequirementFlag.integrity,
        )
        return context

    return _call("Kerberos login", made, _client_error)


def _credentials(gssapi: Any, login: KerberosLogin, usage: str, store: dict[str, str] | None) -> Any:
    name = None
    if login.principal is not None:
        name = gssapi.Name(login.principal, gssapi.NameType.kerberos_principal)
    # Kerberos and nothing else, whatever the library knows.
    return gssapi.Credentials(name=name, usage=usage, mechs=[gssapi.MechType.kerberos], store=store)


def _package() -> Any:
    try:
        import gssapi
    except (ImportError, OSError):  # OSError: the package is there, and MIT's library is not
        raise ConfigError(
            f"GSSAPI needs the package gssapi and MIT's Kerberos: {install('kerberos')}"
        ) from None
    return gssapi
