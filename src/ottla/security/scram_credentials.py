"""SCRAM credentials: what is kept of a password, and how it is made (RFC 5802; Kafka's ScramFormatter).

Rules: pure but for random_salt. A password is never kept, and never travels: an administrator's client salts it
(salted_password), and the controller keeps what proves that somebody knows it (stored_key, server_key). Stateless.
"""

import hashlib
import hmac
import secrets
from dataclasses import dataclass, field
from typing import Final, NamedTuple

# What Kafka takes, whatever the mechanism.
MIN_ITERATIONS: Final = 4096
MAX_ITERATIONS: Final = 16384
# Of a salt and of a nonce.
RANDOM_BITS: Final = 130
_DIGITS: Final = "0123456789abcdefghijklmnopqrstuvwxyz"


class Mechanism(NamedTuple):
    """One of the two kinds of SCRAM that Kafka knows."""

    name: str
    type: int
    hash_name: str


_ALL: Final = (Mechanism("SCRAM-SHA-256", 1, "sha256"), Mechanism("SCRAM-SHA-512", 2, "sha512"))
MECHANISMS: Final = {mechanism.name: mechanism for mechanism in _ALL}
# By the number that requests and records have.
MECHANISM_TYPES: Final = {mechanism.type: mechanism for mechanism in _ALL}


@dataclass(frozen=True, slots=True)
class ScramCredential:
    """What a server keeps of a user."""

    salt: bytes = field(repr=False)
    stored_key: bytes = field(repr=False)
    server_key: bytes = field(repr=False)
    iterations: int


def random_salt() -> bytes:
    """A fresh salt: digits and letters that hold 130 bits, as Kafka makes them."""
    return random_string().encode()


def random_string() -> str:
    return base_36(secrets.randbits(RANDOM_BITS))


def base_36(number: int) -> str:
    digits = ""
    while number or not digits:
        number, digit = divmod(number, len(_DIGITS))
        digits = _DIGITS[digit] + digits
    return digits


def salted_password(mechanism: Mechanism, password: str, salt: bytes, iterations: int) -> bytes:
    """Hi(password, salt, i); Kafka leaves the password as it is where the RFC would normalize it."""
    return hashlib.pbkdf2_hmac(mechanism.hash_name, password.encode(), salt, iterations)


def client_key(mechanism: Mechanism, salted: bytes) -> bytes:
    """What only somebody who knows the password can make."""
    return hmac.digest(salted, b"Client Key", mechanism.hash_name)


def stored_key(mechanism: Mechanism, salted: bytes) -> bytes:
    """H(ClientKey): with it a client's proof can be checked, but not made."""
    return hashlib.new(mechanism.hash_name, client_key(mechanism, salted)).digest()


def server_key(mechanism: Mechanism, salted: bytes) -> bytes:
    """With it the server proves that it knows the credential."""
    return hmac.digest(salted, b"Server Key", mechanism.hash_name)


def credential_of(mechanism: Mechanism, password: str, salt: bytes, iterations: int) -> ScramCredential:
    salted = salted_password(mechanism, password, salt, iterations)
    return ScramCredential(salt, stored_key(mechanism, salted), server_key(mechanism, salted), iterations)
