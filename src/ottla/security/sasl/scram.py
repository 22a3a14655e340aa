"""SCRAM-SHA-256 and SCRAM-SHA-512 (RFC 5802, 7677): both sides prove that they know a password, and neither says it.

Rules: a user who does not exist gets a salt too, always the same one, and fails at the proof with the words and in the
time of a wrong password. The nonce of the last message is the whole one that the server made (CVE-2024-56128), and its
channel binding repeats the first message's header. A client counts iterations before it works on them
(CVE-2026-10143), and believes only a server that has signed. Signatures are over the bytes that were sent. Pure but for
nonces.
"""

import base64
import binascii
import hashlib
import hmac
import re
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol

from ottla.security.sasl.jaas import JaasEntry, check_mechanism, username_and_password, utf8
from ottla.security.sasl.mechanisms import SaslError
from ottla.security.scram_credentials import (
    MAX_ITERATIONS,
    MIN_ITERATIONS,
    RANDOM_BITS,
    Mechanism,
    ScramCredential,
    base_36,
    client_key,
    random_string,
    salted_password,
    server_key,
)

# What a client does for a server that asks for it: 64 times the most that a Kafka stores (credentials of ZooKeeper's
# days had no such bound), half a second's work. Kafka's own client has no bound.
MAX_CLIENT_ITERATIONS: Final = 64 * MAX_ITERATIONS
# Names are the longest part. The server's first message repeats the client's nonce.
MAX_MESSAGE_BYTES: Final = 1 << 13
TOKEN_AUTH: Final = "tokenauth"


@dataclass(frozen=True, slots=True)
class ScramToken:
    """What a server keeps of a delegation token, whose id is the name and whose HMAC is the password (KIP-48)."""

    owner: str
    # From a salt, with MIN_ITERATIONS. Slow: it is PBKDF2, unless the token was shown before.
    credential: Callable[[bytes], ScramCredential] = field(repr=False)
    expires_at_ms: int


class ScramUsers(Protocol):
    """Who may log in to a cluster by SCRAM."""

    def user(self, mechanism: Mechanism, name: str) -> ScramCredential | None:
        """What is kept of a user."""

    def token(self, mechanism: Mechanism, token_id: str) -> ScramToken | None:
        """A delegation token that has not expired."""

    def unknown_secret(self) -> bytes:
        """What the salts of those are made of who are not there: the same on every node."""

    def unknown_iterations(self, mechanism: Mechanism) -> int:
        """How many iterations they have, on every node: as many as those who are there."""


def _xor(one: bytes, other: bytes) -> bytes:
    return bytes(a ^ b for a, b in zip(one, other, strict=True))


# Names are in UTF-8, where Kafka takes ASCII only. A header that asks for channel binding ("p=", "y") is none of these,
# nor is a message with a mandatory extension ("m="), which nobody here knows.
_SASL_NAME: Final = r"(?:[^\x00=,]|=2C|=3D)+"
_NONCE: Final = r"[!-+\--~]+"
_BASE64: Final = r"[A-Za-z0-9+/]*={0,2}"
_EXTENSIONS: Final = r"(?:,[A-Za-z]+=[^\x00,]+)*"
_CLIENT_FIRST: Final = re.compile(
    rf"(?P<header>n,(?:a=(?P<authzid>{_SASL_NAME}))?,)"
    rf"(?P<bare>n=(?P<name>{_SASL_NAME}),r=(?P<nonce>{_NONCE})(?P<extensions>{_EXTENSIONS}))"
)
_SERVER_FIRST: Final = re.compile(
    rf"r=(?P<nonce>{_NONCE}),s=(?P<salt>{_BASE64}),i=(?P<iterations>[0-9]{{1,10}}){_EXTENSIONS}"
)
_CLIENT_FINAL: Final = re.compile(
    rf"(?P<without_proof>c=(?P<channel>{_BASE64}),r=(?P<nonce>{_NONCE}){_EXTENSIONS}),p=(?P<proof>{_BASE64})"
)
_SERVER_FINAL: Final = re.compile(rf"(?:e=(?P<error>[^\x00=,]+)|v=(?P<signature>{_BASE64})){_EXTENSIONS}")

# From a reason to the error of one side.
_Error = Callable[[str], SaslError]


def _parse(error: _Error, pattern: re.Pattern[str], message: bytes, what: str) -> re.Match[str]:
    if len(message) > MAX_MESSAGE_BYTES:
        raise error(f"a {what} message of {len(message)} bytes")
    try:
        match = pattern.fullmatch(message.decode())
    except UnicodeDecodeError:
        match = None
    if match is None:
        # Without the message itself: a client that mixes up mechanisms may have sent a password.
        raise error(f"invalid SCRAM {what} message format")
    return match


def _base64(error: _Error, text: str, what: str) -> bytes:
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        data = b""
    if _encoded(data) != text:  # bits that are left over, too: there is one way only to say a thing
        raise error(f"a {what} that is not base64")
    return data


def _sasl_name(name: str) -> str:
    return name.replace("=", "=3D").replace(",", "=2C")


def _user_name(sasl_name: str) -> str:
    return sasl_name.replace("=2C", ",").replace("=3D", "=")


def _encoded(data: bytes) -> str:
    return base64.b64encode(data).decode()


# What unknown users' salts are made of where nothing better is given: as long as the process lives, each has the same.
_PROCESS_SECRET: Final = secrets.token_bytes()


class _Claim(NamedTuple):
    """Who a client says that it is, and what shows it; `owner` is whom that makes it, None if nobody."""

    name: str
    owner: str | None
    credential: ScramCredential
    by_token: bool = False
    token: ScramToken | None = None


class ScramSaslServer:
    """One exchange of the broker's side (ScramSaslServer): two messages, the second with the client's proof."""

    def __init__(
        self,
        mechanism: Mechanism,
        credentials: Callable[[str], ScramCredential | None],
        tokens: Callable[[str], ScramToken | None] = lambda token_id: None,
        *,
        unknown_secret: bytes = _PROCESS_SECRET,
        unknown_iterations: int = MIN_ITERATIONS,
        server_nonce: Callable[[], str] = random_string,
    ) -> None:
        """`credentials` by user name, `tokens` by token id; `unknown_secret` makes the salts of unknown users, who have
        `unknown_iterations`."""
        self.complete = False
        # From the first message of a token on, also of one that there is not.
        self.is_slow = False
        self.authorization_id = ""
        self.token_authenticated = False
        self.expires_at_ms: int | None = None
        self._mechanism = mechanism
        self._credentials = credentials
        self._tokens = tokens
        self._unknown_secret = unknown_secret
        self._unknown_iterations = unknown_iterations
        self._server_nonce = server_nonce
        self._step = self._client_first

    def evaluate(self, response: bytes) -> bytes:
        # The exchange is over unless the step says what comes next.
        step, self._step = self._step, self._refuse
        return step(response)

    def _refuse(self, response: bytes) -> bytes:
        raise self._error("a message after the end of the exchange")

    def _error(self, reason: str) -> SaslError:
        return SaslError(self._mechanism.name, reason)

    def _client_first(self, response: bytes) -> bytes:
        first = _parse(self._error, _CLIENT_FIRST, response, "client first")
        name, authzid = _user_name(first["name"]), _user_name(first["authzid"] or "")
        # Before the name is looked up, or the answer would tell whether there is such a user.
        if authzid and authzid != name:
            words = (
                "Authentication failed: Client requested an authorization id that is different from username"
            )
            raise SaslError(self._mechanism.name, f"{name!r} asked to be {authzid!r}", words)
        extensions = dict(pair.split("=", 1) for pair in first["extensions"].split(",")[1:])
        self.is_slow = extensions.get(TOKEN_AUTH, "").lower() == "true"
        self._claim = self._look_up(name, by_token=self.is_slow)
        self._header, self._nonce = first["header"], first["nonce"] + self._server_nonce()
        salt, iterations = _encoded(self._claim.credential.salt), self._claim.credential.iterations
        server_first = f"r={self._nonce},s={salt},i={iterations}"
        self._auth_message = f"{first['bare']},{server_first}"
        self._step = self._client_final
        return server_first.encode()

    def _look_up(self, name: str, *, by_token: bool) -> _Claim:
        nobody = self._nobody(name, by_token)
        try:
            if by_token:
                # A token has no salt of its own: until the proof, one that there is looks like one that there is not.
                token = self._tokens(name)
                return nobody if token is None else nobody._replace(owner=token.owner, token=token)
            credential = self._credentials(name)
        except Exception as error:
            raise self._error(f"credentials could not be obtained: {type(error).__name__}") from error
        if credential is None or credential.iterations < MIN_ITERATIONS:
            return nobody
        return _Claim(name, name, credential)

    def _nobody(self, name: str, by_token: bool) -> _Claim:
        """Looks like somebody, but no password makes the proof. Made for everybody, for the time that it takes."""
        subject = f"{self._mechanism.name} {by_token} {name}".encode()
        digest = hmac.digest(self._unknown_secret, subject, "sha512")
        salt = base_36(int.from_bytes(digest) >> (8 * len(digest) - RANDOM_BITS)).encode()
        keys = digest[: hashlib.new(self._mechanism.hash_name).digest_size]
        iterations = MIN_ITERATIONS if by_token else self._unknown_iterations
        return _Claim(name, None, ScramCredential(salt, keys, keys, iterations), by_token)

    def _client_final(self, response: bytes) -> bytes:
        final = _parse(self._error, _CLIENT_FINAL, response, "client final")
        if not hmac.compare_digest(final["nonce"], self._nonce):
            raise self._error("invalid client nonce in the client final message")
        if _base64(self._error, final["channel"], "channel binding") != self._header.encode():
            raise self._error("the channel binding is not that of the client first message")
        proof = _base64(self._error, final["proof"], "client proof")
        auth_message = f"{self._auth_message},{final['without_proof']}".encode()
        claim = self._claim
        if claim.token is not None:
            claim = self._claim = claim._replace(credential=self._made(claim.token, claim.credential.salt))
        proven = self._is_proof(proof, auth_message)
        signature = hmac.digest(claim.credential.server_key, auth_message, self._mechanism.hash_name)
        what = f"{'token' if claim.by_token else 'user'} {claim.name!r}"
        if claim.owner is None:
            raise self._error(f"{what} is unknown, or has less than {MIN_ITERATIONS} iterations")
        if not proven:
            raise self._error(f"{what} has another password")
        self.authorization_id = claim.owner
        self.token_authenticated = claim.by_token
        self.expires_at_ms = None if claim.token is None else claim.token.expires_at_ms
        self.complete = True
        return f"v={_encoded(signature)}".encode()

    def _made(self, token: ScramToken, salt: bytes) -> ScramCredential:
        try:
            return token.credential(salt)
        except Exception as error:
            raise self._error(f"credentials could not be obtained: {type(error).__name__}") from error

    def _is_proof(self, proof: bytes, auth_message: bytes) -> bool:
        """RecoveredKey := ClientProof XOR ClientSignature, and its hash is the stored key."""
        hash_name, stored_key = self._mechanism.hash_name, self._claim.credential.stored_key
        signature = hmac.digest(stored_key, auth_message, hash_name)
        if len(proof) != len(signature):
            return False
        recovered = hashlib.new(hash_name, _xor(proof, signature)).digest()
        return hmac.compare_digest(recovered, stored_key)


class ScramSaslClient:
    """One exchange of the client's side (ScramSaslClient); its second step is PBKDF2, milliseconds or many of them."""

    def __init__(
        self,
        mechanism: Mechanism,
        username: str,
        password: str,
        *,
        token_auth: bool = False,
        client_nonce: Callable[[], str] = random_string,
    ) -> None:
        """With `token_auth` the two are a delegation token's id and HMAC."""
        utf8("user name", username)
        utf8("password", password)
        self.complete = False
        self.is_slow = False
        self._mechanism = mechanism
        self._username = username
        self._password = password
        self._token_auth = token_auth
        self._client_nonce = client_nonce
        self._step: Callable[[bytes], bytes | None] = self._client_first

    @classmethod
    def from_jaas(cls, mechanism: Mechanism, entry: JaasEntry) -> "ScramSaslClient":
        check_mechanism(entry, mechanism.name)
        token_auth = entry.options.get(TOKEN_AUTH, "").lower() == "true"
        return cls(mechanism, *username_and_password(entry), token_auth=token_auth)

    def evaluate(self, challenge: bytes | None) -> bytes | None:
        step, self._step = self._step, self._refuse
        return step(challenge or b"")

    def _refuse(self, challenge: bytes) -> bytes | None:
        raise self._error("a challenge after the end of the exchange")

    def _error(self, what: str) -> SaslError:
        return SaslError(self._mechanism.name, what, f"{self._mechanism.name} with the server failed: {what}")

    def _client_first(self, challenge: bytes) -> bytes:
        if challenge:
            raise self._error("a challenge before the first message")
        self._nonce = self._client_nonce()
        extensions = f",{TOKEN_AUTH}=true" if self._token_auth else ""
        self._bare = f"n={_sasl_name(self._username)},r={self._nonce}{extensions}"
        self._step = self._server_first
        self.is_slow = True
        return f"n,,{self._bare}".encode()

    def _server_first(self, challenge: bytes) -> bytes:
        first = _parse(self._error, _SERVER_FIRST, challenge, "server first")
        nonce, iterations = first["nonce"], int(first["iterations"])
        if not nonce.startswith(self._nonce) or nonce == self._nonce:
            raise self._error("the server's nonce does not continue the client's")
        if not MIN_ITERATIONS <= iterations <= MAX_CLIENT_ITERATIONS:
            bounds = f"not from {MIN_ITERATIONS} to {MAX_CLIENT_ITERATIONS}"
            raise self._error(f"the server asks for {iterations} iterations, {bounds}")
        salt = _base64(self._error, first["salt"], "salt")
        salted = salted_password(self._mechanism, self._password, salt, iterations)
        without_proof = f"c={_encoded(b'n,,')},r={nonce}"
        auth_message = f"{self._bare},{challenge.decode()},{without_proof}".encode()
        hash_name, key = self._mechanism.hash_name, client_key(self._mechanism, salted)
        proof = _xor(key, hmac.digest(hashlib.new(hash_name, key).digest(), auth_message, hash_name))
        self._signature = hmac.digest(server_key(self._mechanism, salted), auth_message, hash_name)
        self._step = self._server_final
        self.is_slow = False
        return f"{without_proof},p={_encoded(proof)}".encode()

    def _server_final(self, challenge: bytes) -> None:
        final = _parse(self._error, _SERVER_FINAL, challenge, "server final")
        if final["error"] is not None:
            raise self._error(f"the server says {final['error']!r}")
        if not hmac.compare_digest(
            _base64(self._error, final["signature"], "server signature"), self._signature
        ):
            raise self._error("invalid server signature: it does not know the password")
        self.complete = True
