"""Clusters of Apache and Ottla nodes with SASL_SSL everywhere: what is made through one kind, the other enforces.

And one directory of users, rules, quotas and tokens, served by either kind in turn.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.interop.process import wait_until
from tests.interop.secured import SecureCluster, SecureNode, Security
from tests.interop.security_world import (
    DENY,
    DESCRIBE,
    PATIENCE_S,
    WRITE,
    agree,
    delete_rules,
    delete_user,
    is_enforced,
    is_let_in,
    is_shown,
    make_quota,
    make_rule,
    make_token,
    make_user,
    may_describe,
    sees,
    throttle_of,
    world,
)

pytestmark = pytest.mark.interop

BOTH = "broker,controller"
NODES = {1: ("ottla", BOTH), 2: ("apache", BOTH), 3: ("ottla", BOTH)}
SETTINGS: dict[str, object] = {
    "delegation.token.secret.key": "known to all nodes",
    "delegation.token.expiry.check.interval.ms": 1000,
    "quota.window.size.seconds": 1,
}
OTHER_WAYS = pytest.mark.parametrize(("through", "at"), [(1, 2), (2, 1), (2, 3)])


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureCluster]:
    where = tmp_path_factory.mktemp("mixed")
    security = Security(where, {"alice": "alice's", "bob": "bob's"}, "SASL_SSL")
    with SecureCluster(where, NODES, security, SETTINGS) as running:
        yield running


@OTHER_WAYS
def test_users(cluster: SecureCluster, through: int, at: int) -> None:
    name = f"user-{through}-{at}"
    login = make_user(cluster[through], name, "first secret")
    wait_until(lambda: is_let_in(cluster[at], login), PATIENCE_S, f"{name} to be known at {at}")
    other = make_user(cluster[through], name, "second secret")
    wait_until(lambda: is_let_in(cluster[at], other), PATIENCE_S, "the new password")
    assert not is_let_in(cluster[at], login)
    delete_user(cluster[at], name)
    wait_until(lambda: not is_let_in(cluster[through], other), PATIENCE_S, f"{name} to be gone")


@OTHER_WAYS
def test_rules(cluster: SecureCluster, through: int, at: int) -> None:
    topic = cluster.create_topic("ruled", [at], through=through)
    maker, judge = cluster[through], cluster[at]
    # By one connection: what was decided about it must not outlive the rules.
    with judge.client_of("alice") as alice:
        assert not is_shown(alice, topic)
        make_rule(maker, "alice", topic, WRITE)
        is_enforced(alice, topic, True, judge.kind)
        assert not may_describe(judge, "bob", topic)
        make_rule(maker, "alice", topic, DESCRIBE, DENY)
        is_enforced(alice, topic, False, judge.kind)
        delete_rules(maker, "alice")
        make_rule(maker, "alice", topic, DESCRIBE)
        is_enforced(alice, topic, True, judge.kind)
        delete_rules(maker, "alice")
        is_enforced(alice, topic, False, judge.kind)


@OTHER_WAYS
def test_quotas(cluster: SecureCluster, through: int, at: int) -> None:
    topic = cluster.create_topic("limited", [at], through=through)
    make_rule(cluster[through], "bob", topic, WRITE)
    sees(cluster[at], "bob", topic, True)
    make_quota(cluster[through], "bob", "producer_byte_rate", 10_000)
    with cluster[at].client_of("bob") as client:
        wait_until(
            lambda: throttle_of(client, topic, 100_000) > 0, PATIENCE_S, "the producer to be throttled"
        )
    delete_rules(cluster[through], "bob")
    make_quota(cluster[through], "bob", "producer_byte_rate", 1e12)


@OTHER_WAYS
def test_tokens(cluster: SecureCluster, through: int, at: int) -> None:
    token = make_token(cluster[through], "alice")
    login = cluster.security.scram_login(token.token_id, token.secret, by_token=True)
    wait_until(lambda: is_let_in(cluster[at], login), PATIENCE_S, "the token to be known")
    topic = cluster.create_topic("by-token", [at], through=through)
    make_rule(cluster[at], "alice", topic, WRITE)
    sees(cluster[at], login, topic, True)
    delete_rules(cluster[at], "alice")


def test_all_show_the_same(cluster: SecureCluster) -> None:
    make_user(cluster[1], "shown", "to all")
    make_rule(cluster[2], "shown", "a-topic", WRITE)
    make_quota(cluster[3], "shown", "consumer_byte_rate", 12_345.0)
    make_token(cluster[2], "bob")
    wait_until(lambda: all(world(cluster[1]).values()), PATIENCE_S, "some of everything")
    agree(cluster)


# ---- one directory, either kind


@pytest.mark.parametrize(("first", "second"), [("ottla", "apache"), ("apache", "ottla")])
def test_directories_are_swapped(tmp_path: Path, first: str, second: str) -> None:
    security = Security(tmp_path, {"alice": "alice's", "bob": "bob's"}, "SASL_SSL")
    with SecureCluster(tmp_path, {1: (first, BOTH)}, security, SETTINGS) as cluster:
        node = cluster[1]
        topic = cluster.create_topic("kept", [1])
        carol = make_user(node, "carol", "carol's")
        make_rule(node, "carol", topic, WRITE)
        make_rule(node, "bob", topic, WRITE)
        make_rule(node, "bob", topic, DESCRIBE, DENY)
        make_quota(node, "carol", "producer_byte_rate", 20_000)
        make_quota(node, None, "consumer_byte_rate", 1e9)
        token = make_token(node, carol)
        there = {"rules": 3, "users": 1, "quotas": 2, "tokens": 1}
        for kind in (second, first, second):
            wait_until(lambda there=there: _counts(node) == there, PATIENCE_S, f"{there} of each")
            before = world(node)
            node.stop()
            node.kind = kind
            node.start()
            wait_until(
                lambda before=before: world(node) == before, PATIENCE_S, f"{world(node)} to be {before}"
            )
            _is_enforced(node, topic, token.token_id, token.secret)
            # The next one finds something new of this one's.
            name = f"of-{kind}-{node.starts}"
            make_user(node, name, "somebody's")
            make_rule(node, name, topic, WRITE)
            make_quota(node, name, "request_percentage", 33.0)
            make_token(node, "alice")
            there = {what: count + 1 for what, count in there.items()}


def _counts(node: SecureNode) -> dict[str, int]:
    return {what: len(rows) for what, rows in world(node).items()}


def _is_enforced(node: SecureNode, topic: str, token_id: str, secret: str) -> None:
    security = node.cluster.security
    carol = security.scram_login("carol", "carol's")
    assert is_let_in(node, carol)
    assert not is_let_in(node, security.scram_login("carol", "another's"))
    assert may_describe(node, carol, topic)
    assert may_describe(node, security.scram_login(token_id, secret, by_token=True), topic)
    assert not may_describe(node, "bob", topic)
    assert not may_describe(node, "alice", topic)
    with node.client_of(carol) as client:
        wait_until(lambda: throttle_of(client, topic, 100_000) > 0, PATIENCE_S, "carol to be throttled")
