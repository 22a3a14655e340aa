"""Scripts: users' SCRAM credentials, client quotas and delegation tokens, asked without authentication."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tests.interop.process import wait_until
from tests.interop.scripts.script import Script

CREATE_TOKEN, RENEW_TOKEN, EXPIRE_TOKEN, DESCRIBE_TOKEN = 38, 39, 40, 41
DESCRIBE_SCRAM, ALTER_SCRAM = 50, 51
SHA_256, SHA_512 = 1, 2


# SCRAM


def deletion(name: str, mechanism: int = SHA_256) -> dict[str, Any]:
    return {"name": name, "mechanism": mechanism}


def upsertion(
    name: str,
    mechanism: int = SHA_256,
    iterations: int = 4096,
    salt: bytes = b"salt",
    salted: bytes = b"salted password",
) -> dict[str, Any]:
    return {
        "name": name,
        "mechanism": mechanism,
        "iterations": iterations,
        "salt": salt,
        "salted_password": salted,
    }


def alteration(
    deletions: Iterable[dict[str, Any]] = (), upsertions: Iterable[dict[str, Any]] = ()
) -> dict[str, Any]:
    return {"deletions": list(deletions), "upsertions": list(upsertions)}


# In their order: each sees what those before it have changed.
SCRAM_CHANGES: dict[str, dict[str, Any]] = {
    "nothing": alteration(),
    "two users": alteration(upsertions=[upsertion("scram-alice"), upsertion("scram-bob", SHA_512, 16384)]),
    "another mechanism": alteration(upsertions=[upsertion("scram-alice", SHA_512, 8192)]),
    "another password": alteration(upsertions=[upsertion("scram-alice", SHA_256, 5000)]),
    "delete and set": alteration([deletion("scram-bob", SHA_512)], [upsertion("scram-carol")]),
    "delete what is not there": alteration([deletion("scram-bob", SHA_512)]),
    "delete another mechanism": alteration([deletion("scram-carol", SHA_512)]),
    "nobody": alteration([deletion("")], [upsertion("")]),
    "mechanism 0": alteration(upsertions=[upsertion("scram-x", 0)]),
    "mechanism 3": alteration([deletion("scram-alice", 3)], [upsertion("scram-x", 3)]),
    "mechanism -1": alteration(upsertions=[upsertion("scram-x", -1)]),
    "one iteration": alteration(upsertions=[upsertion("scram-x", iterations=1)]),
    "4095 iterations": alteration(upsertions=[upsertion("scram-x", iterations=4095)]),
    "16385 iterations": alteration(upsertions=[upsertion("scram-x", iterations=16385)]),
    "a million iterations": alteration(upsertions=[upsertion("scram-x", iterations=10**6)]),
    "iterations below zero": alteration(upsertions=[upsertion("scram-x", iterations=-(2**31))]),
    "no salt": alteration(upsertions=[upsertion("scram-unsalted", salt=b"")]),
    "no salted password": alteration(upsertions=[upsertion("scram-x", salted=b"")]),
    "twice": alteration(upsertions=[upsertion("scram-x"), upsertion("scram-x", SHA_512)]),
    "twice without a password": alteration(
        upsertions=[upsertion("scram-x", salted=b""), upsertion("scram-x")]
    ),
    "deleted twice": alteration([deletion("scram-alice"), deletion("scram-alice", SHA_512)]),
    "deleted and set": alteration([deletion("scram-alice")], [upsertion("scram-alice")]),
    "wrong, then right": alteration(upsertions=[upsertion("scram-x", iterations=1), upsertion("scram-x")]),
    "good and bad": alteration(
        [deletion("scram-y")], [upsertion("scram-good"), upsertion("scram-x", iterations=1)]
    ),
    "a name of any kind": alteration(upsertions=[upsertion("scram-ü,=/ %41"), upsertion("x" * 300)]),
}


def scram(s: Script) -> None:
    """Credentials are set, deleted, described and refused."""
    for v in s.versions(ALTER_SCRAM):
        for case, body in SCRAM_CHANGES.items():
            s.ask(ALTER_SCRAM, v, body, case)
    wait_until(lambda: _has_user(s, "x" * 300), 30, "the last user")
    for v in s.versions(DESCRIBE_SCRAM):
        for case, users in {
            "everybody": None,
            "nobody in particular": [],
            "one": ["scram-alice"],
            "one who is gone": ["scram-bob"],
            "some": ["scram-alice", "scram-carol", "scram-never"],
            "twice": ["scram-alice", "scram-carol", "scram-alice"],
            "twice one who is not": ["scram-never", "scram-never"],
            "no name": [""],
        }.items():
            named = None if users is None else [{"name": user} for user in users]
            s.ask(DESCRIBE_SCRAM, v, {"users": named}, case)
    s.listener = "controller"
    for v in s.versions(ALTER_SCRAM):
        s.ask(ALTER_SCRAM, v, alteration(upsertions=[upsertion("scram-direct")]), "direct")
        s.ask(ALTER_SCRAM, v, alteration([deletion("scram-direct")]), "direct deletion")
        s.ask(ALTER_SCRAM, v, alteration([deletion("scram-direct")]), "direct deletion again")


def _has_user(s: Script, name: str) -> bool:
    found = s.quiet(DESCRIBE_SCRAM, 0, {"users": [{"name": name}]})
    return bool(found["results"][0]["error_code"] == "none")


# Delegation tokens


def tokens(s: Script) -> None:
    """Nobody is known on a listener without authentication, and so nobody is given a token."""
    for listener in ("broker", "controller"):
        s.listener = listener
        for v in s.versions(CREATE_TOKEN):
            _create(s, v)
        for v in s.versions(RENEW_TOKEN):
            s.ask(RENEW_TOKEN, v, {"hmac": b"hmac", "renew_period": 1000}, "renew")
            s.ask(RENEW_TOKEN, v, {"hmac": b"", "renew_period": -1}, "renew nothing")
        for v in s.versions(EXPIRE_TOKEN):
            s.ask(EXPIRE_TOKEN, v, {"hmac": b"hmac", "expiry_time_period": 1000}, "expire")
            s.ask(EXPIRE_TOKEN, v, {"hmac": b"", "expiry_time_period": -1}, "expire nothing")
    s.listener = "broker"
    for v in s.versions(DESCRIBE_TOKEN):
        owner = {"principal_type": "User", "principal_name": "alice"}
        for case, owners in {"all": None, "nobody's": [], "alice's": [owner]}.items():
            s.ask(DESCRIBE_TOKEN, v, {"owners": owners}, case)


def _create(s: Script, v: int) -> None:
    def ask(case: str, owner: tuple[str | None, str | None] = ("", ""), renewer: str = "User") -> None:
        body: dict[str, Any] = {
            "renewers": [{"principal_type": renewer, "principal_name": "bob"}],
            "max_lifetime": -1,
        }
        if v >= 3:
            body |= {"owner_principal_type": owner[0], "owner_principal_name": owner[1]}
        s.ask(CREATE_TOKEN, v, body, case)

    ask("create")
    ask("a renewer who is no user", renewer="Group")
    if v >= 3:
        ask("for another", ("User", "carol"))
        ask("for another kind", ("Group", "carol"))
        ask("for a type without a name", ("User", None))
        ask("for a name without a type", ("", "carol"))
        ask("for a name with no type at all", (None, "carol"))
        ask("for nobody", (None, None))
