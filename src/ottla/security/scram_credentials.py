"""SCRAM credentials: what is kept of a password, and how it is made (RFC 5802; Kafka's ScramFormatter).

Rules: pure but for random_salt. A password is never kept, and never travels: an administrator's client salts it
(salted_password), and the controller keeps what proves that somebody knows it (stored_key, server_key). Stateless.
"""

import hashlib
import hmac
import secrets
from typing import Final, NamedTuple

# What Kafka takes, whatever the mechanism.
MIN_ITERATIONS: Final = 4096
MAX_ITERATIONS: Final = 16384
_SALT_DIGITS: Final = "0123456789abcdefghijklmnopqrstuvwxyz"
_SALT_LENGTH: Final = 25


class Mechanism(NamedTuple):
    """One of the two kinds of SCRAM that Kafka knows."""

    name: str
    type: int
    hash_name: str


_ALL: Final = (Mechanism("SCRAM-SHA-256", 1, "sha256"), Mechanism("SCRAM-SHA-512", 2, "sha512"))
MECHANISMS: Final = {mechanism.name: mechanism for mechanism in _ALL}
# By the number that requests and records have.
MECHANISM_TYPES: Final = {mechanism.type: mechanism for mechanism in _ALL}


def random_salt() -> bytes:
    """A fresh salt: digits and letters that hold about 130 bits, as Kafka makes them."""
    return "".join(secrets.choice(_SALT_DIGITS) for _ in range(_SALT_LENGTH)).encode()


def salted_password(mechanism: Mechanism, password: str, salt: bytes, iterations: int) -> bytes:
    """Hi(password, salt, i); Kafka leaves the password as it is where the RFC would normalize it."""
    return hashlib.pbkdf2_hmac(mechanism.hash_name, password.encode(), salt, iterations)


def stored_key(mechanism: Mechanism, salted: bytes) -> bytes:
    """H(ClientKey): with it a client's proof can be checked, but not made."""
    client_key = hmac.digest(salted, b"Client Key", mechanism.hash_name)
    return hashlib.new(mechanism.hash_name, client_key).digest()


def server_key(mechanism: Mechanism, salted: bytes) -> bytes:
    """With it the server proves that it knows the credential."""
    return hmac.digest(salted, b"Server Key", mechanism.hash_name)
