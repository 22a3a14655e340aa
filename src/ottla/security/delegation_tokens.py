"""Delegation tokens: what their holder shows, and whose they are (KIP-48; Kafka's DelegationTokenManager).

Rules: the log keeps a token without its HMAC, which is its secret and follows from its id and the cluster's secret key;
whoever has that key can make it. The key and what is made with it are in no repr. An HMAC is computed once for each
token: what is remembered is a function of the id, and bounded by how many tokens there are. Owned by whoever made it,
one for the controller and one for the broker; credentials are made in threads.
"""

import base64
import hmac
from collections.abc import Callable, Collection, Set
from typing import Final, Protocol

from ottla.model.time_slice import Steps
from ottla.security.principal import KafkaPrincipal
from ottla.security.scram_credentials import MIN_ITERATIONS, Mechanism, ScramCredential, credential_of

# Timestamps of an answer that has no token to tell of.
ERROR_TIMESTAMP: Final = -1
_ALGORITHM: Final = "sha512"
# Remembered beyond those that there are, before what is gone is forgotten.
_GONE_AT_MOST: Final = 1_000
# Computed in one step: a quarter of a millisecond.
_PER_STEP: Final = 100
# Credentials that are remembered; each was some milliseconds' work.
_CREDENTIALS_AT_MOST: Final = 10_000


class Token(Protocol):
    """What is asked of a token here: a DelegationTokenRecord has it."""

    @property
    def token_id(self) -> str: ...
    @property
    def owner(self) -> str: ...
    @property
    def requester(self) -> str: ...
    @property
    def renewers(self) -> Collection[str]: ...
    @property
    def max_timestamp(self) -> int: ...
    @property
    def expiration_timestamp(self) -> int: ...


class TokenHmacs:
    """The HMACs of tokens under one secret key."""

    __slots__ = ("_by_id", "_ids", "_key")

    def __init__(self, secret_key: str) -> None:
        assert secret_key, "without a key there are no tokens"
        self._key = secret_key.encode()
        self._by_id: dict[str, bytes] = {}
        self._ids: dict[bytes, str] = {}

    def hmac_of(self, token_id: str) -> bytes:
        known = self._by_id.get(token_id)
        if known is None:
            known = hmac.digest(self._key, token_id.encode(), _ALGORITHM)
            self._by_id[token_id] = known
            self._ids[known] = token_id
        return known

    def find(self, token_hmac: bytes, ids: Collection[str]) -> Steps[str | None]:
        """The id among these whose HMAC it is."""
        if len(self._by_id) > len(ids) + _GONE_AT_MOST:
            self._by_id.clear()
            self._ids.clear()
        if token_hmac not in self._ids:
            for count, token_id in enumerate(ids, 1):
                self.hmac_of(token_id)
                if count % _PER_STEP == 0:
                    yield
        found = self._ids.get(token_hmac)
        return found if found is not None and found in ids else None


class DelegationTokenCache:
    """What shows that somebody has a token, for SCRAM: its id is the name, its HMAC in base64 the password."""

    __slots__ = ("_made", "_secret_key")

    def __init__(self, secret_key: str) -> None:
        self._secret_key = secret_key
        self._made: dict[tuple[str, str, bytes], ScramCredential] = {}

    def credential(self, mechanism: Mechanism, token_id: str, salt: bytes) -> ScramCredential:
        """Of a token that there is. In a thread: the first time it is PBKDF2."""
        key = (mechanism.name, token_id, salt)
        known = self._made.get(key)
        if known is None:
            password = base64.b64encode(TokenHmacs(self._secret_key).hmac_of(token_id)).decode()
            known = credential_of(mechanism, password, salt, MIN_ITERATIONS)
            if len(self._made) >= _CREDENTIALS_AT_MOST:
                self._made.clear()
            self._made[key] = known
        return known


def is_expired(token: Token, now_ms: int) -> bool:
    return token.max_timestamp < now_ms or token.expiration_timestamp < now_ms


def may_renew(token: Token, principal: KafkaPrincipal) -> bool:
    """The owner and the renewers may, and they may end it."""
    return str(principal) == token.owner or str(principal) in token.renewers


def may_see(
    token: Token,
    principal: KafkaPrincipal,
    owners: Set[str] | None,
    permitted: Callable[[Token], bool],
) -> bool:
    """Is a token among those asked for (None: all), and is it the principal's, or one that it is `permitted` to see?"""
    involved = (token.owner, token.requester, *token.renewers)
    if owners is not None and not any(each in owners for each in involved):
        return False
    return str(principal) in involved or permitted(token)
