"""Users, rules, quotas and tokens of a cluster: made through one node, seen and enforced by another of any kind."""

from __future__ import annotations

import base64
import hashlib
import os
from typing import Any, NamedTuple

from tests.interop.process import wait_until
from tests.interop.scripts import acls
from tests.interop.scripts.batches import Batch, Rec
from tests.interop.scripts.entities import ZERO_ID
from tests.interop.secured import ADMIN, Login, Refused, SecureCluster, SecureNode
from tests.support.raw_client import METADATA, RawClient

DESCRIBE_ACLS, CREATE_ACLS, DELETE_ACLS = 29, 30, 31
CREATE_TOKEN, DESCRIBE_TOKEN = 38, 41
DESCRIBE_QUOTAS, ALTER_QUOTAS = 48, 49
DESCRIBE_SCRAM, ALTER_SCRAM = 50, 51
SHA_512, ITERATIONS = 2, 4096
DENY, WRITE, DESCRIBE = 2, 4, 8
PATIENCE_S = 60.0


class Token(NamedTuple):
    """By which its owner logs in."""

    token_id: str
    hmac: bytes

    @property
    def secret(self) -> str:
        return base64.b64encode(self.hmac).decode()

    def __repr__(self) -> str:
        return f"Token({self.token_id!r})"


# ---- made


def make_user(node: SecureNode, name: str, password: str) -> Login:
    """A user of SCRAM-SHA-512, once this node lets them in."""
    salt = os.urandom(20)
    salted = hashlib.pbkdf2_hmac("sha512", password.encode(), salt, ITERATIONS)
    row = {
        "name": name,
        "mechanism": SHA_512,
        "iterations": ITERATIONS,
        "salt": salt,
        "salted_password": salted,
    }
    with node.client() as admin:
        answer = admin.ask(ALTER_SCRAM, 0, {"deletions": [], "upsertions": [row]})
    assert answer["results"][0]["error_code"] == "none", answer
    login = node.cluster.security.scram_login(name, password)
    wait_until(lambda: is_let_in(node, login), PATIENCE_S, f"{name} to be known")
    return login


def delete_user(node: SecureNode, name: str) -> None:
    with node.client() as admin:
        answer = admin.ask(
            ALTER_SCRAM, 0, {"deletions": [{"name": name, "mechanism": SHA_512}], "upsertions": []}
        )
    assert answer["results"][0]["error_code"] == "none", answer


def make_rule(node: SecureNode, user: str, topic: str, operation: int, permission: int = acls.ALLOW) -> None:
    row = acls.creation(topic, principal=f"User:{user}", operation=operation, permission_type=permission)
    with node.client() as admin:
        answer = admin.ask(CREATE_ACLS, 3, {"creations": [row]})
    assert answer["results"][0]["error_code"] == "none", answer


def delete_rules(node: SecureNode, user: str) -> None:
    with node.client() as admin:
        answer = admin.ask(DELETE_ACLS, 3, {"filters": [acls.matching(principal_filter=f"User:{user}")]})
    assert answer["filter_results"][0]["error_code"] == "none", answer


def make_quota(node: SecureNode, user: str | None, key: str, value: float) -> None:
    entity = [{"entity_type": "user", "entity_name": user}]
    entry = {"entity": entity, "ops": [{"key": key, "value": value, "remove": False}]}
    with node.client() as admin:
        answer = admin.ask(ALTER_QUOTAS, 1, {"entries": [entry], "validate_only": False})
    assert answer["entries"][0]["error_code"] == "none", answer


def make_token(node: SecureNode, owner: str | Login, renewer: str = ADMIN) -> Token:
    body = {"renewers": [{"principal_type": "User", "principal_name": renewer}], "max_lifetime": -1}
    with node.client_of(owner) as client:
        answer = client.ask(CREATE_TOKEN, 3, {**body, "owner_principal_type": "", "owner_principal_name": ""})
    assert answer["error_code"] == "none", answer
    return Token(answer["token_id"], answer["hmac"])


# ---- enforced


def is_let_in(node: SecureNode, login: Login) -> bool:
    try:
        node.client_of(login).close()
    except Refused:
        return False
    return True


def may_describe(node: SecureNode, who: str | Login, topic: str) -> bool:
    """Whether this node shows a topic."""
    with node.client_of(who) as client:
        return is_shown(client, topic)


def is_shown(client: RawClient, topic: str) -> bool:
    """The same by a connection that is there: decisions are kept with it until rules change."""
    rows = [{"topic_id": ZERO_ID, "name": topic}]
    answer = client.ask(METADATA, 12, {"topics": rows, "allow_auto_topic_creation": False})
    code: str = answer["topics"][0]["error_code"]
    assert code in ("none", "topic_authorization_failed"), answer
    return code == "none"


def sees(node: SecureNode, who: str | Login, topic: str, wanted: bool) -> None:
    """Wait until this node enforces it."""
    with node.client_of(who) as client:
        is_enforced(client, topic, wanted, f"node {node.node_id} ({node.kind})")


def is_enforced(client: RawClient, topic: str, wanted: bool, where: str) -> None:
    what = f"{where} {'to show' if wanted else 'not to show'} {topic}"
    wait_until(lambda: is_shown(client, topic) is wanted, PATIENCE_S, what)


def throttle_of(client: RawClient, topic: str, size: int) -> int:
    """How long a producer is told to wait after so many bytes."""
    data = [{"index": 0, "records": Batch(records=[Rec(bytes(size))]).encode()}]
    body = {"acks": -1, "timeout": 20_000, "topic_data": [{"name": topic, "partition_data": data}]}
    answer = client.ask(0, 9, body)
    assert answer["responses"][0]["partition_responses"][0]["error_code"] == "none", answer
    return int(answer["throttle_time"])


# ---- seen


def world(node: SecureNode) -> dict[str, Any]:
    """Everything that this node shows of who may do what, and how much."""
    with node.client() as admin:
        rules = admin.ask(DESCRIBE_ACLS, 3, acls.matching())
        users = admin.ask(DESCRIBE_SCRAM, 0, {"users": None})
        quotas = admin.ask(DESCRIBE_QUOTAS, 1, {"components": [], "strict": False})
        tokens = admin.ask(DESCRIBE_TOKEN, 3, {"owners": None})
    return {
        "rules": sorted(
            (r["resource_type"], r["resource_name"], r["pattern_type"], *map(str, rule.values()))
            for r in rules["resources"]
            for rule in r["acls"]
        ),
        "users": sorted(
            (r["user"], c["mechanism"], c["iterations"])
            for r in users["results"]
            for c in r["credential_infos"]
        ),
        "quotas": sorted(
            (str(e["entity"]), sorted((v["key"], v["value"]) for v in e["values"]))
            for e in quotas["entries"] or []
        ),
        "tokens": sorted(map(str, tokens["tokens"])),
    }


def agree(cluster: SecureCluster) -> None:
    """Wait until all nodes show the same."""
    first, *others = (cluster[node_id] for node_id in cluster.nodes)
    for node in others:
        what = f"node {node.node_id} ({node.kind}) to show what the first one does"
        wait_until(lambda node=node: world(node) == world(first), PATIENCE_S, what)
