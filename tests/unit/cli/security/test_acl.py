"""`ottla acl`: words become rules, and rules words; what decides, or is missing, is named."""

import json
from collections.abc import Sequence
from contextlib import nullcontext

import pytest

from ottla.cli.main import main
from ottla.cli.security import acl
from ottla.model.errors import ErrorCode, KafkaError
from ottla.security.acls import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    PatternType,
    ResourceType,
)

ALLOW, DENY = AclPermissionType.ALLOW, AclPermissionType.DENY
LITERAL, PREFIXED = PatternType.LITERAL, PatternType.PREFIXED


def rule(
    operation: str,
    kind: str,
    name: str,
    *,
    user: str = "User:alice",
    host: str = "*",
    permission: AclPermissionType = ALLOW,
    pattern: PatternType = LITERAL,
) -> AclBinding:
    return AclBinding(ResourceType[kind], name, pattern, user, host, AclOperation[operation], permission)


class Admin:
    """A cluster's rules."""

    def __init__(self) -> None:
        self.rules: set[AclBinding] = set()
        self.refuses: KafkaError | None = None

    def describe_acls(self, wanted: AclBindingFilter) -> list[AclBinding]:
        return sorted(each for each in self.rules if wanted.matches(each))

    def create_acls(self, bindings: Sequence[AclBinding]) -> dict[AclBinding, KafkaError | None]:
        if self.refuses is None:
            self.rules.update(bindings)
        return dict.fromkeys(bindings, self.refuses)

    def delete_acls(
        self, filters: Sequence[AclBindingFilter]
    ) -> dict[AclBindingFilter, list[AclBinding] | KafkaError]:
        if self.refuses is not None:
            return dict.fromkeys(filters, self.refuses)
        found = {each: self.describe_acls(each) for each in filters}
        self.rules -= {rule for rules in found.values() for rule in rules}
        return dict(found)


@pytest.fixture
def admin(monkeypatch: pytest.MonkeyPatch) -> Admin:
    made = Admin()
    monkeypatch.setattr(acl, "admin", lambda args: nullcontext(made))
    return made


def added(admin: Admin, *words: str) -> set[AclBinding]:
    before = set(admin.rules)
    assert main(["acl", "add", *words]) == 0
    return admin.rules - before


# ---- add ----------------------------------------------------------------------------------------------------


def test_operations_on_resources(admin: Admin) -> None:
    assert added(admin, "--user", "alice", "--op", "read", "--op", "Write", "--topic", "x") == {
        rule("READ", "TOPIC", "x"),
        rule("WRITE", "TOPIC", "x"),
    }
    words = ["-u", "*", "-u", "Group:staff", "--op", "all", "--group", "g-", "--prefixed", "--deny"]
    assert added(admin, *words, "--host", "10.0.0.1") == {
        rule("ALL", "GROUP", "g-", user=user, host="10.0.0.1", permission=DENY, pattern=PREFIXED)
        for user in ("User:*", "Group:staff")
    }
    assert added(admin, "-u", "node", "--op", "ClusterAction", "--cluster") == {
        rule("CLUSTER_ACTION", "CLUSTER", "kafka-cluster", user="User:node")
    }
    assert added(admin, "-u", "alice", "--op", "create-tokens", "--token-user", "bob") == {
        rule("CREATE_TOKENS", "USER", "User:bob")
    }


def test_what_a_producer_needs(admin: Admin) -> None:
    assert added(admin, "-u", "alice", "--producer", "--topic", "x", "--transactional-id", "t") == {
        rule("WRITE", "TOPIC", "x"),
        rule("CREATE", "TOPIC", "x"),
        rule("WRITE", "TRANSACTIONAL_ID", "t"),
        rule("DESCRIBE", "TRANSACTIONAL_ID", "t"),
    }


def test_what_a_consumer_needs(admin: Admin) -> None:
    assert added(admin, "-u", "alice", "--consumer", "--topic", "x", "--group", "g") == {
        rule("READ", "TOPIC", "x"),
        rule("READ", "GROUP", "g"),
    }


def test_what_streams_needs(admin: Admin) -> None:
    made = added(admin, "-u", "alice", "--streams", "--topic", "in", "--group", "app")
    assert {rule("READ", "TOPIC", "in"), rule("WRITE", "TOPIC", "in"), rule("READ", "GROUP", "app")} <= made
    assert rule("CREATE", "TOPIC", "app-", pattern=PREFIXED) in made
    assert rule("WRITE", "TRANSACTIONAL_ID", "app-", pattern=PREFIXED) in made
    assert {each.name for each in made} == {"in", "app", "app-"}


def test_what_spark_needs(admin: Admin) -> None:
    made = added(admin, "-u", "alice", "--spark", "--topic", "x")
    assert {rule("READ", "TOPIC", "x"), rule("WRITE", "TOPIC", "x")} <= made
    assert rule("READ", "GROUP", "ottla-spark", pattern=PREFIXED) in made
    assert rule("READ", "GROUP", "spark-kafka-", pattern=PREFIXED) in made
    assert rule("WRITE", "TRANSACTIONAL_ID", "ottla-spark", pattern=PREFIXED) in made
    made = added(admin, "-u", "bob", "--spark", "--topic", "x", "--group", "mine", "--transactional-id", "t")
    assert {each.name for each in made} == {"x", "mine", "t"}


def test_a_role_may_be_everybodys_part_of_a_name(admin: Admin) -> None:
    assert added(admin, "-u", "alice", "--consumer", "--topic", "x-", "--group", "g-", "--prefixed") == {
        rule("READ", "TOPIC", "x-", pattern=PREFIXED),
        rule("READ", "GROUP", "g-", pattern=PREFIXED),
    }


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--op", "read", "--topic", "x"], "for whom"),
        (["-u", "a", "--op", "read"], "on what"),
        (["-u", "a", "--topic", "x"], "which operation"),
        (["-u", "a", "--consumer", "--topic", "x"], "--group NAME is needed"),
        (["-u", "a", "--producer", "--op", "read", "--topic", "x"], "--producer says which operations"),
        (["-u", "a", "--producer", "--deny", "--topic", "x"], "--producer says which operations"),
        (["-u", "a", "--op", "write", "--group", "g"], "WRITE means nothing for a GROUP"),
        (["-u", "a", "--op", "read", "--topic", ""], "has a name"),
        (["-u", "", "--op", "read", "--topic", "x"], "a user has a name"),
        (["-u", "a", "--op", "read", "--topic", "*", "--prefixed"], "begin with a star"),
        (["-u", "a", "--op", "peek", "--topic", "x"], "peek"),
    ],
)
def test_what_cannot_be_meant(
    admin: Admin, capsys: pytest.CaptureFixture[str], words: list[str], complaint: str
) -> None:
    assert main(["acl", "add", *words]) == 2
    assert complaint in capsys.readouterr().err
    assert not admin.rules


def test_a_dry_run_adds_nothing(admin: Admin, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["acl", "add", "-u", "a", "--op", "read", "--topic", "x", "--dry-run"]) == 0
    assert not admin.rules
    assert "User:a" in capsys.readouterr().out


def test_what_the_cluster_refuses_is_said(admin: Admin, capsys: pytest.CaptureFixture[str]) -> None:
    admin.refuses = KafkaError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED, "Cluster authorization failed.")
    assert main(["acl", "add", "-u", "a", "--op", "read", "--topic", "x"]) == 1
    assert main(["acl", "remove", "--topic", "x"]) == 1
    assert capsys.readouterr().err.count("Cluster authorization failed.") == 2


# ---- list and remove ----------------------------------------------------------------------------------------


@pytest.fixture
def rules(admin: Admin) -> dict[str, AclBinding]:
    made = {
        "read": rule("READ", "TOPIC", "orders"),
        "prefix": rule("WRITE", "TOPIC", "ord", pattern=PREFIXED, user="User:bob"),
        "all": rule("DESCRIBE", "TOPIC", "*", user="User:*"),
        "deny": rule("READ", "TOPIC", "orders", user="User:mallory", permission=DENY),
        "group": rule("READ", "GROUP", "g"),
    }
    admin.rules = set(made.values())
    return made


@pytest.mark.parametrize(
    ("words", "names"),
    [
        ([], "read prefix all deny group"),
        (["--topic", "orders"], "read deny"),
        (["--topic", "orders", "--matching"], "read prefix all deny"),
        (["--topic", "ord", "--prefixed"], "prefix"),
        (["--prefixed"], "prefix"),
        (["--user", "alice"], "read group"),
        (["--user", "*"], "all"),
        (["--op", "read", "--allow"], "read group"),
        (["--deny"], "deny"),
        (["--group", "g"], "group"),
        (["--host", "10.0.0.1"], ""),
    ],
)
def test_listing(
    rules: dict[str, AclBinding], capsys: pytest.CaptureFixture[str], words: list[str], names: str
) -> None:
    assert main(["acl", "list", "-o", "json", *words]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert sorted(map(str, shown)) == sorted(str(acl._row(rules[name])) for name in names.split())


def test_removing_takes_what_is_named_and_nothing_else(admin: Admin, rules: dict[str, AclBinding]) -> None:
    assert main(["acl", "remove", "--topic", "orders", "--user", "alice", "--dry-run"]) == 0
    assert len(admin.rules) == 5
    assert main(["acl", "remove", "--topic", "orders", "--user", "alice"]) == 0
    assert set(rules.values()) - admin.rules == {rules["read"]}
    assert main(["acl", "remove"]) == 2
    assert len(admin.rules) == 4
    assert main(["acl", "remove", "--all"]) == 0
    assert not admin.rules


# ---- explain ------------------------------------------------------------------------------------------------


def explained(capsys: pytest.CaptureFixture[str], *words: str, code: int) -> str:
    assert main(["acl", "explain", *words]) == code
    return capsys.readouterr().out


def test_the_rule_that_allows(rules: dict[str, AclBinding], capsys: pytest.CaptureFixture[str]) -> None:
    out = explained(capsys, "--user", "alice", "--op", "read", "--topic", "orders", code=0)
    assert out == f"User:alice may READ TOPIC 'orders'\n  by the rule: {rules['read']}\n"
    # One that implies it, and one by its beginning.
    out = explained(capsys, "--user", "bob", "--op", "write", "--topic", "orders", code=0)
    assert str(rules["prefix"]) in out


def test_the_rule_that_denies(rules: dict[str, AclBinding], capsys: pytest.CaptureFixture[str]) -> None:
    out = explained(capsys, "--user", "mallory", "--op", "read", "--topic", "orders", code=1)
    assert out == f"User:mallory may not READ TOPIC 'orders'\n  by the rule: {rules['deny']}\n"


def test_the_rule_that_is_missing(rules: dict[str, AclBinding], capsys: pytest.CaptureFixture[str]) -> None:
    out = explained(capsys, "--user", "alice", "--op", "write", "--topic", "orders", code=1)
    assert "User:alice may not WRITE TOPIC 'orders'\n" in out
    assert f"of 4 rules about it none allows that; missing is: {rule('WRITE', 'TOPIC', 'orders')}" in out
    assert "to add it: ottla acl add --user alice --op write --topic orders\n" in out
    out = explained(capsys, "-u", "Group:x y", "--op", "cluster_action", "--cluster", "--host", "::1", code=1)
    assert "no rule is about it" in out
    assert "ottla acl add --user 'Group:x y' --op cluster_action --cluster --host 0:0:0:0:0:0:0:1\n" in out


def test_the_command_that_it_names_is_enough(
    admin: Admin, rules: dict[str, AclBinding], capsys: pytest.CaptureFixture[str]
) -> None:
    import shlex

    words = ["--user", "alice", "--op", "write", "--topic", "orders"]
    out = explained(capsys, *words, code=1)
    (command,) = [line.partition("to add it: ")[2] for line in out.splitlines() if "to add it" in line]
    assert main(shlex.split(command)[1:]) == 0
    explained(capsys, *words, code=0)


def test_addresses_are_spelled_as_brokers_spell_those_of_clients(
    admin: Admin, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--user", "mallory", "--op", "read", "--topic", "x"]
    assert main(["acl", "add", *words, "--deny", "--host", "2001:DB8::7", "--host", "10.0.0.1"]) == 0
    assert {each.host for each in admin.rules} == {"2001:db8:0:0:0:0:0:7", "10.0.0.1"}
    admin.rules.add(rule("READ", "TOPIC", "x", user="User:mallory"))
    for host, code in (("2001:db8:0::7", 1), ("::ffff:10.0.0.1", 1), ("2001:db8::8", 0)):
        explained(capsys, *words, "--host", host, code=code)
    assert main(["acl", "remove", *words, "--host", "2001:db8::7"]) == 0
    assert {each.host for each in admin.rules} == {"10.0.0.1", "*"}


def test_hosts_that_make_a_difference(admin: Admin, capsys: pytest.CaptureFixture[str]) -> None:
    admin.rules = {
        rule("READ", "TOPIC", "x", host="10.0.0.1"),
        rule("READ", "TOPIC", "y"),
        rule("READ", "TOPIC", "y", host="10.0.0.2", permission=DENY),
    }
    out = explained(capsys, "-u", "alice", "--op", "read", "--topic", "x", code=1)
    assert "from host 10.0.0.1 they may: by the rule" in out
    explained(capsys, "-u", "alice", "--op", "read", "--topic", "x", "--host", "10.0.0.1", code=0)
    out = explained(capsys, "-u", "alice", "--op", "read", "--topic", "y", code=0)
    assert "from host 10.0.0.2 they may not: by the rule" in out


def test_for_programs(rules: dict[str, AclBinding], capsys: pytest.CaptureFixture[str]) -> None:
    said = json.loads(
        explained(capsys, "-u", "alice", "--op", "read", "--topic", "orders", "-o", "json", code=0)
    )
    assert said["allowed"] is True
    assert said["rule"] == acl._row(rules["read"])
    said = json.loads(explained(capsys, "-u", "alice", "--op", "write", "--topic", "q", "-o", "json", code=1))
    assert (said["allowed"], said["rule"]) == (False, None)
    assert said["missing"] == acl._row(rule("WRITE", "TOPIC", "q"))


@pytest.mark.parametrize("words", [[], ["--topic", "a", "--group", "b"]])
def test_one_resource_at_a_time(admin: Admin, words: list[str]) -> None:
    assert main(["acl", "explain", "-u", "alice", "--op", "read", *words]) == 2
