"""SCRAM credentials as the metadata log keeps them (RFC 5802, KIP-554, KIP-900).

Pure but for the salt of a credential that brings none. A password is never kept: only what proves that somebody
knows it. `ottla storage format --add-scram` puts a cluster's first users into bootstrap.checkpoint with this.
"""

import base64
import binascii
from collections.abc import Sequence

from ottla.metadata.records import UserScramCredentialRecord
from ottla.security.scram_credentials import (
    MAX_ITERATIONS,
    MECHANISMS,
    MIN_ITERATIONS,
    Mechanism,
    random_salt,
    salted_password,
    server_key,
    stored_key,
)


def credential_record(
    mechanism: Mechanism, name: str, salted: bytes, salt: bytes, iterations: int
) -> UserScramCredentialRecord:
    """What the log keeps of a user: with the stored key a proof can be checked, but not made."""
    return UserScramCredentialRecord(
        name=name,
        mechanism=mechanism.type,
        salt=salt,
        stored_key=stored_key(mechanism, salted),
        server_key=server_key(mechanism, salted),
        iterations=iterations,
    )


def parse_credentials(arguments: Sequence[str]) -> list[UserScramCredentialRecord]:
    """From `SCRAM-SHA-256=[name=alice,password=secret]` and the like; ValueError for anything else."""
    return [_parse_credential(argument.strip()) for argument in arguments]


def _parse_credential(argument: str) -> UserScramCredentialRecord:
    name, equals, body = argument.partition("=")
    if not equals:
        raise ValueError(f"Failed to find equals sign in SCRAM argument '{argument}'")
    mechanism = MECHANISMS.get(name)
    if mechanism is None:
        raise ValueError(f"The add-scram mechanism {name} is not supported.")
    if not (body.startswith("[") and body.endswith("]") and len(body) > 1):
        raise ValueError(f"{name}: expected its settings in square brackets, such as [name=alice,password=a]")
    return _build(mechanism, _settings(body[1:-1]))


def _settings(text: str) -> dict[str, str]:
    found = {}
    for part in text.split(","):
        key, equals, value = part.partition("=")
        if not equals:
            raise ValueError(f"No equals sign found in SCRAM component: {part}")
        quoted = len(value) >= 2 and value.startswith('"') and value.endswith('"')
        found[key] = value[1:-1] if quoted else value
    return found


def _build(mechanism: Mechanism, settings: dict[str, str]) -> UserScramCredentialRecord:
    name = settings.pop("name", None)
    if name is None:
        raise ValueError("You must supply 'name' to add-scram")
    given_salt = settings.pop("salt", None)
    iterations = _iterations(mechanism, settings.pop("iterations", None))
    password, salted = settings.pop("password", None), settings.pop("saltedpassword", None)
    if settings:
        raise ValueError(f"Unknown SCRAM configurations: {', '.join(sorted(settings))}")
    salt = random_salt() if given_salt is None else _base64("salt", given_salt)
    if password is not None:
        proof = salted_password(mechanism, password, salt, iterations)
    elif salted is None:
        raise ValueError("You must supply one of 'password' or 'saltedpassword' to add-scram")
    elif given_salt is None:
        raise ValueError("You must supply 'salt' with 'saltedpassword' to add-scram")
    else:
        proof = _base64("saltedPassword", salted)
    return credential_record(mechanism, name, proof, salt, iterations)


def _iterations(mechanism: Mechanism, text: str | None) -> int:
    if text is None:
        return MIN_ITERATIONS
    try:
        iterations = int(text)
    except ValueError:
        raise ValueError(f"Failed to parse iterations count: {text}") from None
    if not MIN_ITERATIONS <= iterations <= MAX_ITERATIONS:
        raise ValueError(
            f"The 'iterations' value must be >= {MIN_ITERATIONS} and <= {MAX_ITERATIONS} "
            f"for add-scram using {mechanism.name}"
        )
    return iterations


def _base64(what: str, text: str) -> bytes:
    try:
        # Java's decoder does not ask for the padding.
        return base64.b64decode(text + "=" * (-len(text) % 4), validate=True)
    except (binascii.Error, ValueError):
        raise ValueError(f"Failed to decode given {what}: {text}") from None
