"""Questions of people with few rights, and a world that they ask about.

A `JudgedScript` is a Script that asks as somebody. `prepare` makes the topics, groups and transactional ids of
scripts/rights.py, and all rules; `ask_all` asks everything of one API on one way:

- `broker`: of a broker, which passes some of it on to the controller,
- `controller`: of the controller itself,
- `envelope`: of the controller, as a broker asks that passes it on.
"""

from __future__ import annotations

import base64
import socket
import uuid
from typing import Any

from tests.interop.process import wait_until
from tests.interop.scripts import rights
from tests.interop.scripts.batches import Batch
from tests.interop.scripts.classic_groups import coordinated
from tests.interop.scripts.entities import ZERO_ID, encode_request
from tests.interop.scripts.masks import masked
from tests.interop.scripts.questions import DAY_MS, FIRST, LIMITED, STRANGER, UNKNOWN_IDS, Asking, asked_of
from tests.interop.scripts.rights import (
    BOTH,
    DOOMED,
    EVERYTHING,
    GHOST,
    HIDDEN,
    NOBODY,
    SEEN,
    VOID,
    WORDS,
    User,
    auto_topic,
)
from tests.interop.scripts.script import ANSWER_TIMEOUT_S, Ranges, Script
from tests.interop.scripts.share_groups import share_coordinated
from tests.interop.scripts.streams_members import NOTHING_SAID, sub, topology
from tests.interop.scripts.users import BYTES, MUCH, change
from tests.interop.secured import ADMIN, BROKER, Login, SecureNode, logged_in
from tests.support.specimens import specimen

from ottla.wire.registry import APIS

PRODUCE, FETCH, METADATA, API_VERSIONS, ENVELOPE = 0, 1, 3, 18, 58
CREATE_ACLS, DESCRIBE_ACLS = 30, 29
OFFSET_COMMIT, INIT_PRODUCER_ID, FIND_COORDINATOR = 8, 22, 10
CONTROLLER_REGISTRATION = 70
CONSUMER_HEARTBEAT, SHARE_HEARTBEAT, STREAMS_HEARTBEAT = 68, 76, 88
CREATE_TOKEN, RENEW_TOKEN, EXPIRE_TOKEN, DESCRIBE_TOKEN = 38, 39, 40, 41
DESCRIBE_QUOTAS, ALTER_QUOTAS = 48, 49
CREATE_TOPICS, DELETE_TOPICS, SASL_HANDSHAKE, SASL_AUTHENTICATE = 19, 20, 17, 36
WAYS = ("broker", "controller", "envelope")
VICTIMS = (DOOMED, f"{DOOMED}-too")
TOPICS = (SEEN, HIDDEN, *VICTIMS)
PATIENCE_S = 90.0
# Their specimens would change what the next question is about; that of a controller makes Apache's controller resign.
NO_SPECIMEN = {DELETE_TOPICS, CONTROLLER_REGISTRATION}
# Of members that nobody knows, so that no group changes, and of a producer that nobody knows, or transactions would end
# while the next one asks; with time enough to be answered by the controller.
SPECIMEN_VALUES = {
    "member_epoch": 3,
    "timeout": 20_000,
    **{f"{prefix}producer_id": STRANGER["producer_id"] for prefix in ("", "v3_and_below_")},
}
API_KEYS = {api.name: key for key, api in APIS.items()}
HIDDEN_TOPIC = "topic_authorization_failed"
LOOPBACK = b"\x7f\x00\x00\x01"


class JudgedScript(Script):
    """Connections of many users to one node."""

    def __init__(
        self, node: SecureNode, ranges: Ranges, symbols: dict[str, str], controller: SecureNode
    ) -> None:
        super().__init__(node, ranges, symbols)
        self.node = node
        self.controller = controller
        self.user = ADMIN
        self.ids: dict[str, uuid.UUID] = dict(UNKNOWN_IDS)
        # Of the tokens that are there from the beginning, by owner; and how many have been made up to now.
        self.hmacs: dict[str, bytes] = {}
        self.tokens = 0
        # Of those who have none of the users' passwords.
        self.logins: dict[str, Login] = {}

    @property
    def who(self) -> str:
        return f"{self.listener} as {self.user}"

    def fresh_connection(self) -> socket.socket:
        """Of the user whose turn it is."""
        at = self.node.port if self.listener == "broker" else self.controller.controller_port
        sock = socket.create_connection((self.node.host, at), timeout=ANSWER_TIMEOUT_S)
        login = self.logins.get(self.user) or self.node.cluster.security.login(self.user)
        return logged_in(sock, login, self.node.host)

    def put(
        self, api_key: int, version: int, request: bytes, case: str, correlation_id: int = 7
    ) -> dict[str, Any]:
        """Tokens are counted."""
        answer = super().put(api_key, version, request, case, correlation_id)
        self.tokens += api_key == CREATE_TOKEN and bool(answer.get("hmac"))
        return answer

    def note(self, label: str, outcome: Any) -> None:
        """Topics that may not be described come last, and groups at all, in the order of a set of Java's."""
        if isinstance(outcome, dict) and " describe_topic_partitions " in label:
            outcome["topics"].sort(key=lambda topic: (topic["error_code"] == HIDDEN_TOPIC, topic["name"]))
        if isinstance(outcome, dict) and " list_groups " in label:
            outcome["groups"].sort(key=lambda group: group["group_id"])
        super().note(label, outcome)

    def as_admin(self) -> None:
        self.user, self.listener = ADMIN, "broker"


# ---- the world


def prepare(s: JudgedScript) -> None:
    """Topics, groups, transactional ids, rules; returns when the node knows them all."""
    s.as_admin()
    for name in TOPICS:
        make_topic(s, name)
    for name in (SEEN, HIDDEN):
        s.produce(name, 0, Batch())
        _commit(s, coordinated(s, name), SEEN, HIDDEN)
        wait_until(lambda name=name: _has_producer(s, name), PATIENCE_S, f"a producer of {name}")
    _join_new_groups(s)
    _create_rules(s)
    _limit(s)
    for owner in (SEEN, HIDDEN, NOBODY.name):
        _make_token(s, owner)


def make_topic(s: JudgedScript, name: str) -> None:
    s.create(name)
    s.ids[name] = uuid.UUID(s.topic_ids[name])


def _commit(s: JudgedScript, group: str, *topics: str) -> None:
    row = {"partition_index": 0, "committed_offset": 3, "committed_leader_epoch": -1}
    rows = [{"name": name, "partitions": [row]} for name in topics]
    nobody = {"generation_id_or_member_epoch": -1, "member_id": ""}

    def committed() -> bool:
        answer = s.quiet(OFFSET_COMMIT, 8, {"group_id": group, **nobody, "topics": rows})
        return all(p["error_code"] == "none" for t in answer["topics"] for p in t["partitions"])

    wait_until(committed, PATIENCE_S, f"offsets of {group}")


def _has_producer(s: JudgedScript, transactional_id: str) -> bool:
    s.quiet(FIND_COORDINATOR, 4, {"key_type": 1, "coordinator_keys": [transactional_id]})
    new = {"transaction_timeout": 60_000, "producer_id": -1, "producer_epoch": -1}
    answer = s.quiet(INIT_PRODUCER_ID, 4, {"transactional_id": transactional_id, **new})
    return bool(answer and answer["error_code"] == "none")


def _join_new_groups(s: JudgedScript) -> None:
    """Members of groups of the newer kinds, which stay: their sessions are long."""
    for number, (word, topics) in enumerate(((SEEN, [SEEN]), (HIDDEN, [HIDDEN]), (BOTH, [SEEN, HIDDEN]))):
        member = {"member_id": str(uuid.UUID(int=100 + number)), "member_epoch": 0, "rack_id": None}
        quiet = {"instance_id": None, "server_assignor": None, "rebalance_timeout": 60_000}
        named = {"subscribed_topic_names": topics}
        regex = {"subscribed_topic_regex": None, "topic_partitions": []}
        group = coordinated(s, f"{word}-consumer")
        _join(s, CONSUMER_HEARTBEAT, 1, {"group_id": group, **member, **quiet, **named, **regex})
        group = coordinated(s, f"{word}-share")
        for topic in (SEEN, HIDDEN):
            share_coordinated(s, group, topic, 1)
        _join(s, SHARE_HEARTBEAT, 1, {"group_id": group, **member, **named})
        group = coordinated(s, f"{word}-streams")
        tasks: dict[str, Any] = {"active_tasks": [], "standby_tasks": [], "warmup_tasks": []}
        about = {"process_id": "p", "rebalance_timeout": 60_000, "topology": topology(sub("0", topics))}
        _join(s, STREAMS_HEARTBEAT, 0, {**NOTHING_SAID, "group_id": group, **member, **tasks, **about})


def _join(s: JudgedScript, api_key: int, version: int, body: dict[str, Any]) -> None:
    def joined() -> bool:
        return bool(s.quiet(api_key, version, body).get("error_code") == "none")

    wait_until(joined, PATIENCE_S, f"a member of {body['group_id']}")


def _create_rules(s: JudgedScript) -> None:
    rules = [rule for user in rights.everybody() for rule in user.rules]
    answer = s.quiet(CREATE_ACLS, 3, {"creations": rules})
    assert {row["error_code"] for row in answer["results"]} == {"none"}, answer
    anything = {"resource_type_filter": 1, "pattern_type_filter": 1, "operation": 1, "permission_type": 1}

    def arrived() -> bool:
        found = s.quiet(DESCRIBE_ACLS, 3, {**anything, "principal_filter": None, "host_filter": None})
        return sum(len(resource["acls"]) for resource in found["resources"]) == len(rules)

    for listener in ("broker", "controller"):
        s.listener = listener
        wait_until(arrived, PATIENCE_S, f"the rules to arrive at the {listener}")
    s.as_admin()


def _limit(s: JudgedScript) -> None:
    entries = [change({"user": LIMITED}, (BYTES, MUCH))]
    s.quiet(ALTER_QUOTAS, 1, {"entries": entries, "validate_only": False})
    wait_until(
        lambda: bool(s.quiet(DESCRIBE_QUOTAS, 1, {"components": [], "strict": False})["entries"]),
        PATIENCE_S,
        "the quota to arrive",
    )


def _make_token(s: JudgedScript, owner: str) -> None:
    """Somebody's token, which EVERYTHING may renew; it is there when the controller finds it by its HMAC."""
    renewers = [{"principal_type": "User", "principal_name": name} for name in (ADMIN, EVERYTHING.name)]
    whose = {"owner_principal_type": "User", "owner_principal_name": owner}
    made = s.quiet(CREATE_TOKEN, 3, {"renewers": renewers, "max_lifetime": -1, **whose})
    assert made["error_code"] == "none", made["error_code"]
    s.hmacs[owner] = made["hmac"]
    s.tokens += 1
    _wait_for_token(s, made["hmac"])


def _wait_for_token(s: JudgedScript, token_hmac: bytes) -> None:
    """Until whoever may renew it can."""
    renewal = {"hmac": token_hmac, "renew_period": DAY_MS}
    wait_until(
        lambda: s.quiet(RENEW_TOKEN, 2, renewal)["error_code"] == "none", PATIENCE_S, "the token to be known"
    )


def _wait_for_tokens(s: JudgedScript) -> None:
    """Until the broker shows all that have been made: it hears of them after the controller has answered."""
    user, listener = s.user, s.listener
    s.as_admin()
    wait_until(
        lambda: len(s.quiet(DESCRIBE_TOKEN, 3, {"owners": None})["tokens"]) == s.tokens,
        PATIENCE_S,
        f"{s.tokens} tokens",
    )
    s.user, s.listener = user, listener


# ---- asking


def ask_all(s: JudgedScript, way: str, api: str) -> None:
    """All questions of an API: by those whose rights matter to it, and the newest version to a broker by everybody."""
    key = API_KEYS[api]
    s.listener = "broker" if way == "broker" else "controller"
    for version in s.versions(key):
        # What is deleted has to be made again each time.
        everybody = version == s.newest(key) and way == "broker" and key != DELETE_TOPICS
        ask_version(s, way, api, version, everybody=everybody)


def ask_version(s: JudgedScript, way: str, api: str, version: int, *, everybody: bool = False) -> None:
    """All questions of one version."""
    key = API_KEYS[api]
    s.listener = "broker" if way == "broker" else "controller"
    concerned = {user.name: user for user in rights.of_api(api)}
    others = {user.name: user for user in (rights.everybody() if everybody else ())}
    newest = version == s.newest(key)
    if key == DESCRIBE_TOKEN:
        _wait_for_tokens(s)
    for user in (others | concerned).values():
        asking = Asking(key, version, newest, user.name, s.ids, s.hmacs)
        _ask(s, way, asking, user, specimens=newest and user.name in concerned)


def _ask(s: JudgedScript, way: str, asking: Asking, user: User, *, specimens: bool) -> None:
    frames = _frames(asking, specimens)
    for case in list(frames):
        if asking.api_key == DELETE_TOPICS:
            # By the ids that there are now.
            frames = _frames(asking, specimens)
        frame, label = frames[case], f"{case}, {user.name}"
        if way == "envelope":
            s.user = BROKER
            _forward(s, asking, frame, user, label)
        else:
            s.user = user.name
            s.put(asking.api_key, asking.version, frame, label)
            if asking.api_key in (SASL_HANDSHAKE, SASL_AUTHENTICATE):
                # Whatever that has begun ends with the connection.
                s.disconnect()
        if asking.api_key == DELETE_TOPICS:
            _restore(s)


def _frames(asking: Asking, specimens: bool) -> dict[str, bytes]:
    """By case; an API that has no questions of its own has a specimen all the time."""
    asked = asked_of(asking)
    if asking.api_key not in NO_SPECIMEN and (specimens or not asked):
        for word in WORDS if specimens else (SEEN,):
            asked[word] = specimen(
                asking.api_key, asking.version, word, asking.ids[word], {**SPECIMEN_VALUES, "group_id": word}
            )
    return asked


def _forward(s: JudgedScript, asking: Asking, frame: bytes, user: User, case: str) -> None:
    """As a broker does it that has found out who asks."""
    name = user.name.encode()
    principal = b"\0\0" + bytes([len(b"User") + 1]) + b"User" + bytes([len(name) + 1]) + name + b"\0\0"
    body = {"request_data": frame[4:], "request_principal": principal, "client_host_address": LOOPBACK}
    request = encode_request(ENVELOPE, 0, body)
    answer = s.put(ENVELOPE, 0, request, f"{APIS[asking.api_key].name} v{asking.version}, {case}")
    inner = answer.get("response_data")
    if inner:
        decoded = s.decoded(asking.api_key, asking.version, inner, 7)
        s.tokens += asking.api_key == CREATE_TOKEN and bool(decoded.get("hmac"))
        s.record[next(reversed(s.record))]["response_data"] = masked(asking.api_key, decoded, s.symbols)


def _shows(s: JudgedScript, name: str, topic_id: str) -> bool:
    return s.is_led(name, 1) and s.topic_ids[name] == topic_id


def _restore(s: JudgedScript) -> None:
    """What somebody was allowed to delete is made again; to ask for it tells whether it is there still."""
    user, listener = s.user, s.listener
    s.as_admin()
    rows = [{"name": name, "num_partitions": 1, "replication_factor": 1} for name in VICTIMS]
    answer = s.quiet(CREATE_TOPICS, 7, {"topics": rows, "timeout": 20_000})
    for row in answer["topics"]:
        if row["error_code"] == "none":
            # The broker may still show the one that is gone.
            wait_until(
                lambda row=row: _shows(s, row["name"], row["topic_id"]), PATIENCE_S, f"{row['name']} again"
            )
            s.ids[row["name"]] = uuid.UUID(row["topic_id"])
    s.user, s.listener = user, listener


def made_for_asking(s: JudgedScript) -> None:
    """Topics that are made because somebody asks for them: who gets one, and who is only told that there is none."""
    version = s.newest(METADATA)
    users = rights.of_api("Metadata")
    wanted = [auto_topic(user.name) for user in users]
    for user, name in zip(users, wanted, strict=True):
        s.user = user.name
        rows = [{"name": name, "topic_id": ZERO_ID}]
        s.ask(METADATA, version, {"topics": rows, "allow_auto_topic_creation": True}, f"made for {user.name}")
    s.as_admin()
    # They are made in the background, in this order.
    wait_until(lambda: s.is_led(wanted[-1], 1), PATIENCE_S, f"{wanted[-1]} to be made")
    rows = [{"name": name, "topic_id": ZERO_ID} for name in wanted]
    s.ask(METADATA, version, {"topics": rows, "allow_auto_topic_creation": False}, "which of them there are")


def without_answers(s: JudgedScript) -> None:
    """Produce with acks=0, which is not answered: who may not is hung up on, and who may can go on."""
    after = encode_request(API_VERSIONS, 0, {})
    for user in rights.of_api("Produce"):
        s.user = user.name
        for words in ((SEEN,), (SEEN, HIDDEN), (VOID,)):
            rows = [
                {"name": word, "partition_data": [{"index": 0, "records": Batch().encode()}]}
                for word in words
            ]
            body = {"transactional_id": None, "acks": 0, "timeout": 1000, "topic_data": rows}
            outcome = s.exchange(encode_request(PRODUCE, 12, body) + after)
            s.note(
                f"acks=0 to {' '.join(words)}, {user.name}",
                outcome if isinstance(outcome, str) else "goes on",
            )


def sessions(s: JudgedScript) -> None:
    """A fetch session is judged at each request, whatever was said when it began.

    Of somebody else's, Apache tells what the one who asks may read; Ottla says that there is none.
    """
    for version in (11, s.newest(FETCH)):
        for user in ("everything", "all-of-Fetch", "nothing"):
            s.user = user
            began = _fetch(s, version, f"{user} begins", 0, 0, (SEEN, HIDDEN))
            session = began.get("session_id", 0)
            _fetch(s, version, f"{user} goes on", session, 1, ())
            _fetch(s, version, f"{user} adds", session, 2, (HIDDEN, GHOST))
            _fetch(s, version, f"{user} goes on again", session, 3, ())


def _fetch(
    s: JudgedScript, version: int, case: str, session: int, epoch: int, words: tuple[str, ...]
) -> dict[str, Any]:
    row = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": len(FIRST), "current_leader_epoch": -1}
    rows = [{"topic": word, "topic_id": s.ids[word], "partitions": [row]} for word in words]
    state = {"replica_id": -1, "replica_epoch": -1}
    body = {"replica_id": -1, "replica_state": state, "max_wait": 0, "min_bytes": 0, "max_bytes": 1 << 20}
    return s.ask(
        FETCH, version, {**body, "topics": rows, "session_id": session, "session_epoch": epoch}, case
    )


def patterns(s: JudgedScript) -> None:
    """A member that reads topics by a pattern is given those of them that it may describe."""
    for number, name in enumerate(("all-of-ConsumerGroupHeartbeat", "everything")):
        s.user = name
        member = {
            "group_id": "ghost-consumer",
            "member_id": str(uuid.UUID(int=200 + number)),
            "member_epoch": 0,
        }
        nothing = {
            "instance_id": None,
            "rack_id": None,
            "server_assignor": None,
            "subscribed_topic_names": None,
        }
        body = {**member, **nothing, "rebalance_timeout": 60_000, "subscribed_topic_regex": "seen|hidden"}
        body["topic_partitions"] = []
        found: dict[str, Any] = {}

        def assigned(body: dict[str, Any] = body, found: dict[str, Any] = found) -> bool:
            found.update(s.quiet(CONSUMER_HEARTBEAT, 1, body))
            assert found["error_code"] == "none", found
            body["member_epoch"] = found["member_epoch"]
            return bool(found["assignment"] and found["assignment"]["topic_partitions"])

        wait_until(assigned, PATIENCE_S, f"{name} to be given what the pattern matches")
        rows = found["assignment"]["topic_partitions"]
        s.note(f"given to {name}", sorted(s.symbols.get(row["topic_id"], row["topic_id"]) for row in rows))
        s.ask(CONSUMER_HEARTBEAT, 1, {**body, "member_epoch": -1, "topic_partitions": None}, f"{name} leaves")


def tokens(s: JudgedScript) -> None:
    """A token's life in each version: who sees it, renews it and ends it, and what whoever comes by it may not."""
    for version in s.versions(CREATE_TOKEN):
        _life_of_a_token(s, version)


def _life_of_a_token(s: JudgedScript, version: int) -> None:
    owner, renewer, stranger = NOBODY.name, EVERYTHING.name, "only-READ-TOPIC"
    renewers = [{"principal_type": "User", "principal_name": renewer}]
    nobody_else = {"owner_principal_type": "", "owner_principal_name": ""} if version >= 3 else {}
    s.user = owner
    made = s.ask(CREATE_TOKEN, version, {"renewers": renewers, "max_lifetime": DAY_MS, **nobody_else}, "made")
    _wait_for_token(s, made["hmac"])
    _wait_for_tokens(s)
    older = min(version, s.newest(RENEW_TOKEN))
    for user in (owner, renewer, stranger):
        s.user = user
        s.ask(DESCRIBE_TOKEN, version, {"owners": None}, f"seen by {user}")
        for period in (-1, 0, 1000 * DAY_MS):
            renewal = {"hmac": made["hmac"], "renew_period": period}
            s.ask(RENEW_TOKEN, older, renewal, f"renewed by {user} for {period}")
        s.ask(
            EXPIRE_TOKEN,
            older,
            {"hmac": made["hmac"], "expiry_time_period": 1000 * DAY_MS},
            f"ended by {user}",
        )
    _ask_by_token(s, version, made)
    s.user = stranger
    s.ask(
        EXPIRE_TOKEN, older, {"hmac": made["hmac"], "expiry_time_period": -1}, "ended at once by a stranger"
    )
    s.user = renewer
    s.ask(EXPIRE_TOKEN, older, {"hmac": made["hmac"], "expiry_time_period": -1}, "ended at once")
    s.tokens -= 1
    _wait_for_tokens(s)
    for user in (owner, stranger):
        s.user = user
        s.ask(RENEW_TOKEN, older, {"hmac": made["hmac"], "renew_period": -1}, f"gone, renewed by {user}")
        s.ask(EXPIRE_TOKEN, older, {"hmac": made["hmac"], "expiry_time_period": -1}, f"gone, ended by {user}")


def _ask_by_token(s: JudgedScript, version: int, token: dict[str, Any]) -> None:
    """By a connection that has a token in place of a password: about tokens it is told nothing."""
    secret = base64.b64encode(token["hmac"]).decode()
    login = s.node.cluster.security.scram_login(token["token_id"], secret, by_token=True)
    s.user = f"token of v{version}"
    s.logins[s.user] = login
    older = min(version, s.newest(RENEW_TOKEN))
    nobody_else = {"owner_principal_type": "", "owner_principal_name": ""} if version >= 3 else {}
    s.ask(CREATE_TOKEN, version, {"renewers": [], "max_lifetime": -1, **nobody_else}, "made by token")
    s.ask(RENEW_TOKEN, older, {"hmac": token["hmac"], "renew_period": -1}, "renewed by token")
    s.ask(EXPIRE_TOKEN, older, {"hmac": token["hmac"], "expiry_time_period": -1}, "ended by token")
    s.ask(DESCRIBE_TOKEN, version, {"owners": None}, "seen by token")
    rows = [{"name": SEEN, "topic_id": ZERO_ID}]
    s.ask(METADATA, 12, {"topics": rows, "allow_auto_topic_creation": False}, "a topic by token")
    s.disconnect()
