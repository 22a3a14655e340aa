"""Scripts: users' SCRAM credentials, client quotas and delegation tokens, asked without authentication."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tests.interop.process import wait_until
from tests.interop.scripts.script import Script

CREATE_TOKEN, RENEW_TOKEN, EXPIRE_TOKEN, DESCRIBE_TOKEN = 38, 39, 40, 41
DESCRIBE_QUOTAS, ALTER_QUOTAS = 48, 49
DESCRIBE_SCRAM, ALTER_SCRAM = 50, 51
SHA_256, SHA_512 = 1, 2
SASL_HANDSHAKE, SASL_AUTHENTICATE = 17, 36


def sasl(s: Script) -> None:
    """SASL where it has no place: on listeners that know nobody."""
    for listener in ("broker", "controller"):
        s.listener = listener
        for v in s.versions(SASL_HANDSHAKE):
            for mechanism in ("PLAIN", "SCRAM-SHA-512", "", "nonsense"):
                s.ask(SASL_HANDSHAKE, v, {"mechanism": mechanism}, f"mechanism {mechanism!r}")
        for v in s.versions(SASL_AUTHENTICATE):
            for token in (b"\0alice\0secret", b""):
                s.ask(SASL_AUTHENTICATE, v, {"auth_bytes": token}, f"{len(token)} bytes")


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


# Quotas

BYTES, RATE = "producer_byte_rate", "connection_creation_rate"
MUCH = 1e12
Entity = dict[str, str | None]
ALICE: Entity = {"user": "quota-alice"}


def parts(entity: Entity) -> list[dict[str, Any]]:
    return [{"entity_type": kind, "entity_name": name} for kind, name in entity.items()]


def change(entity: Entity, *ops: tuple[str, float | None]) -> dict[str, Any]:
    """One entity of an AlterClientQuotas request; None removes a quota."""
    return {
        "entity": parts(entity),
        "ops": [{"key": key, "value": value or 0.0, "remove": value is None} for key, value in ops],
    }


# In their order. What is no number Kafka takes, and an entity that is named twice it changes all the same: neither is
# asked here.
QUOTA_CHANGES: dict[str, list[dict[str, Any]]] = {
    "nothing": [],
    "a user": [change(ALICE, (BYTES, 1000.0), ("request_percentage", 12.5))],
    # Those that would hold for everybody are so large that nobody is held up.
    "every level": [
        change({"user": None}, ("consumer_byte_rate", MUCH)),
        change({"user": "quota-alice", "client-id": "c"}, (BYTES, 2.0)),
        change({"user": "quota-alice", "client-id": None}, (BYTES, 3.0)),
        change({"user": None, "client-id": "c"}, (BYTES, 4.0)),
        change({"user": None, "client-id": None}, (BYTES, MUCH)),
        change({"client-id": "c"}, ("controller_mutation_rate", 0.5)),
        change({"client-id": None}, ("controller_mutation_rate", MUCH)),
        change({"ip": "10.9.8.7"}, (RATE, 8.0)),
        change({"ip": "::1"}, (RATE, 8.0)),
        change({"ip": None}, (RATE, 2.0**30)),
    ],
    "again": [change(ALICE, (BYTES, 1000.0))],
    "another value": [change(ALICE, (BYTES, 2000.0))],
    "removed": [change(ALICE, ("request_percentage", None))],
    "removed what is not there": [change(ALICE, ("consumer_byte_rate", None), ("nonsense", None))],
    "no change": [change(ALICE)],
    "zero": [change(ALICE, (BYTES, 0.0))],
    "below zero": [change(ALICE, (BYTES, -1.0))],
    "a fraction": [change(ALICE, (BYTES, 1.5))],
    "nearly whole": [change(ALICE, (BYTES, 1.0000001))],
    "too large": [change(ALICE, (BYTES, 2.0**64))],
    "a percentage of a hair": [change(ALICE, ("request_percentage", 1e-9))],
    "unknown key": [change(ALICE, ("nonsense", 1.0))],
    "no key": [change(ALICE, ("", 1.0))],
    "an address's key": [change(ALICE, (RATE, 1.0))],
    "good and bad keys": [change(ALICE, ("consumer_byte_rate", 1.0), ("nonsense", 1.0))],
    "a key twice": [change(ALICE, (BYTES, 1.0), (BYTES, 2.0))],
    "unknown type": [change({"group": "g"}, (BYTES, 1.0))],
    "no type": [change({"": "g"}, (BYTES, 1.0))],
    "a user of a group": [change({"user": "u", "group": "g"}, (BYTES, 1.0))],
    "no entity": [change({}, (BYTES, 1.0))],
    "no entity and no change": [change({})],
    "a user without a name": [change({"user": ""}, (BYTES, 1.0))],
    "a client without a name": [change({"client-id": ""}, (BYTES, 1.0))],
    "an address without a name": [change({"ip": ""}, (RATE, 1.0))],
    "an address and a user": [change({"ip": "10.9.8.7", "user": "u"}, (RATE, 1.0))],
    "an address's bytes": [change({"ip": "10.9.8.7"}, (BYTES, 1.0))],
    "half a connection": [change({"ip": "10.9.8.7"}, (RATE, 1.5))],
    "too many connections": [change({"ip": "10.9.8.7"}, (RATE, 2.0**31))],
    "a host": [change({"ip": "localhost"}, (RATE, 2.0**30))],
    "no host": [change({"ip": "nowhere.invalid"}, (RATE, 1.0))],
    "good and bad entities": [
        change({"user": "quota-bob"}, (BYTES, 1.0)),
        change({"user": "quota-bad"}, (BYTES, 0.0)),
    ],
    "odd names": [change({"user": "quota <default> ü/%41", "client-id": "x" * 300}, (BYTES, 1.0))],
}
EXACT, DEFAULT, SPECIFIED = range(3)
QUOTA_FILTERS: dict[str, list[tuple[str, int, str | None]]] = {
    "all": [],
    "a user": [("user", EXACT, "quota-alice")],
    "the default user": [("user", DEFAULT, None)],
    "any user": [("user", SPECIFIED, None)],
    "a user's clients": [("user", EXACT, "quota-alice"), ("client-id", SPECIFIED, None)],
    "default and default": [("user", DEFAULT, None), ("client-id", DEFAULT, None)],
    "a client": [("client-id", EXACT, "c")],
    "an address": [("ip", EXACT, "10.9.8.7")],
    "any address": [("ip", SPECIFIED, None)],
    "nobody": [("user", EXACT, "quota-never")],
    "no name": [("user", EXACT, "")],
    "exactly null": [("user", EXACT, None)],
    "a default with a name": [("user", DEFAULT, "quota-alice")],
    "any with a name": [("user", SPECIFIED, "quota-alice")],
    "unknown match": [("user", 3, None)],
    "match -1": [("user", -1, None)],
    "unknown type": [("group", EXACT, "g")],
    "no type": [("", EXACT, "g")],
    "a type twice": [("user", EXACT, "a"), ("user", SPECIFIED, None)],
    "an address and a user": [("ip", EXACT, "10.9.8.7"), ("user", SPECIFIED, None)],
    "an address and a client": [("client-id", DEFAULT, None), ("ip", DEFAULT, None)],
}


def quotas(s: Script) -> None:
    """Quotas of every kind of entity are set, removed, described and refused."""
    for v in s.versions(ALTER_QUOTAS):
        for case, entries in QUOTA_CHANGES.items():
            s.ask(ALTER_QUOTAS, v, {"entries": entries, "validate_only": True}, f"{case}, only validated")
            s.ask(ALTER_QUOTAS, v, {"entries": entries, "validate_only": False}, case)
    wait_until(lambda: _has_quota(s, "quota <default> ü/%41"), 30, "the last quota")
    for v in s.versions(DESCRIBE_QUOTAS):
        for case, wanted in QUOTA_FILTERS.items():
            components = [{"entity_type": t, "match_type": k, "match": n} for t, k, n in wanted]
            for strict in (False, True):
                how = f"{case}{', strictly' if strict else ''}"
                s.ask(DESCRIBE_QUOTAS, v, {"components": components, "strict": strict}, how)
    s.listener = "controller"
    for v in s.versions(ALTER_QUOTAS):
        s.ask(ALTER_QUOTAS, v, {"entries": [change(ALICE, (BYTES, None))], "validate_only": False}, "direct")
    s.listener = "broker"
    _remove_all(s)


def _remove_all(s: Script) -> None:
    """No script after this one is held to a quota."""
    for entry in s.quiet(DESCRIBE_QUOTAS, 1, {"components": [], "strict": False})["entries"]:
        entity = {part["entity_type"]: part["entity_name"] for part in entry["entity"]}
        gone = change(entity, *((value["key"], None) for value in entry["values"]))
        s.quiet(ALTER_QUOTAS, 1, {"entries": [gone], "validate_only": False})


def _has_quota(s: Script, user: str) -> bool:
    component = {"entity_type": "user", "match_type": EXACT, "match": user}
    return bool(s.quiet(DESCRIBE_QUOTAS, 1, {"components": [component], "strict": False})["entries"])


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
