"""StandardAuthorizer: the rules of deciding, one by one; a model that knows them all is in tests/property."""

from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.config.errors import ConfigError
from ottla.model.errors import ErrorCode, KafkaError
from ottla.model.ids import Uuid
from ottla.security import authorizer as module
from ottla.security.acls import AclBinding, AclOperation, AclPermissionType, PatternType, ResourceType
from ottla.security.authorizer import (
    MAX_KEPT_DECISIONS,
    MAX_KEPT_NAME_LENGTH,
    MAX_KNOWN,
    STANDARD,
    CustomAuthorizer,
    Decisions,
    StandardAuthorizer,
    make_authorizer,
    parse_super_users,
)
from ottla.security.principal import KafkaPrincipal

ALICE = KafkaPrincipal("User", "alice")
BOB = KafkaPrincipal("User", "bob")
HOST = "10.0.0.1"
TOPIC, GROUP = ResourceType.TOPIC, ResourceType.GROUP
LITERAL, PREFIXED = PatternType.LITERAL, PatternType.PREFIXED
ALLOW, DENY = AclPermissionType.ALLOW, AclPermissionType.DENY
READ, WRITE, DESCRIBE, ALL = (
    AclOperation.READ,
    AclOperation.WRITE,
    AclOperation.DESCRIBE,
    AclOperation.ALL,
)


def acl_id(number: int) -> Uuid:
    return Uuid(number.to_bytes(16, "big"))


def rule(
    name: str = "orders",
    operation: AclOperation = READ,
    permission: AclPermissionType = ALLOW,
    *,
    pattern: PatternType = LITERAL,
    principal: str = "User:alice",
    host: str = "*",
    kind: ResourceType = TOPIC,
) -> AclBinding:
    return AclBinding(kind, name, pattern, principal, host, operation, permission)


def authorizer(*rules: AclBinding, allow_everyone: bool = False) -> StandardAuthorizer:
    made = StandardAuthorizer([KafkaPrincipal("User", "root")], allow_everyone_if_no_acl_found=allow_everyone)
    made.apply([(acl_id(number), binding) for number, binding in enumerate(rules)])
    return made


def may(
    judge: StandardAuthorizer,
    operation: AclOperation = READ,
    name: str = "orders",
    principal: KafkaPrincipal = ALICE,
    host: str = HOST,
    kind: ResourceType = TOPIC,
) -> bool:
    """Both ways to ask must agree, and what is explained must be one of the rules."""
    allowed = judge.authorize(principal, host, operation, kind, name)
    explained = judge.explain(principal, host, operation, kind, name)
    assert explained.allowed == allowed
    assert explained.rule is None or explained.rule in judge._by_id.values()
    return allowed


def test_nobody_may_anything_without_rules_but_super_users() -> None:
    judge = authorizer()
    assert not may(judge)
    assert may(judge, principal=KafkaPrincipal("User", "root"))
    assert may(judge, principal=KafkaPrincipal("User", "root", token_authenticated=True))
    assert not may(judge, principal=KafkaPrincipal("Group", "root"))


def test_super_users_are_not_denied() -> None:
    judge = authorizer(rule("*", ALL, DENY, principal="User:*"))
    assert may(judge, principal=KafkaPrincipal("User", "root"))


@pytest.mark.parametrize(
    "given",
    [
        rule(),
        rule("*"),
        rule("ord", pattern=PREFIXED),
        rule("orders", pattern=PREFIXED),
        rule(principal="User:*"),
        rule(host=HOST),
        rule(operation=ALL),
    ],
)
def test_what_allows(given: AclBinding) -> None:
    assert may(authorizer(given))
    assert may(authorizer(given), principal=ALICE._replace(token_authenticated=True))


@pytest.mark.parametrize(
    "given",
    [
        rule("order"),
        rule("orders2"),
        rule("orders2", pattern=PREFIXED),
        rule("*", pattern=PREFIXED),
        rule(principal="User:bob"),
        rule(principal="Group:alice"),
        rule(principal="Group:*"),
        rule(principal="alice"),
        rule(host="10.0.0.2"),
        rule(operation=WRITE),
        rule(kind=GROUP),
        rule(operation=AclOperation.UNKNOWN),
    ],
)
def test_what_does_not_allow(given: AclBinding) -> None:
    assert not may(authorizer(given))


@pytest.mark.parametrize("name", ["orders", "*", "ord"])
@pytest.mark.parametrize("principal", ["User:alice", "User:*"])
@pytest.mark.parametrize("host", [HOST, "*"])
@pytest.mark.parametrize("operation", [READ, ALL])
def test_deny_wins(name: str, principal: str, host: str, operation: AclOperation) -> None:
    pattern = PREFIXED if name == "ord" else LITERAL
    denied = rule(name, operation, DENY, principal=principal, host=host, pattern=pattern)
    assert not may(authorizer(rule(), denied))
    assert not may(authorizer(denied, rule("*", ALL, principal="User:*"), allow_everyone=True))
    assert may(authorizer(rule(), denied), kind=GROUP) is False


@pytest.mark.parametrize(
    ("given", "implied"),
    [
        (READ, DESCRIBE),
        (WRITE, DESCRIBE),
        (AclOperation.DELETE, DESCRIBE),
        (AclOperation.ALTER, DESCRIBE),
        (AclOperation.ALTER_CONFIGS, AclOperation.DESCRIBE_CONFIGS),
    ],
)
def test_what_an_allow_implies_and_a_deny_does_not(given: AclOperation, implied: AclOperation) -> None:
    assert may(authorizer(rule(operation=given)), implied)
    assert may(authorizer(rule(operation=given, permission=DENY), rule(operation=implied)), implied)
    assert not may(authorizer(rule(operation=implied)), given)


@pytest.mark.parametrize(
    "given",
    [
        AclOperation.CREATE,
        AclOperation.CLUSTER_ACTION,
        AclOperation.IDEMPOTENT_WRITE,
        AclOperation.ALTER_CONFIGS,
    ],
)
def test_what_does_not_imply_describe(given: AclOperation) -> None:
    assert not may(authorizer(rule(operation=given)), DESCRIBE)


def test_everyone_where_no_rule_is_found_and_only_there() -> None:
    """A rule that is gone leaves nothing behind (CVE-2024-27309)."""
    judge = authorizer(
        rule(principal="User:bob"), rule("logs", pattern=PREFIXED, principal="User:bob"), allow_everyone=True
    )
    assert not may(judge)
    assert not may(judge, name="logs-1")
    assert may(judge, name="other")
    assert may(judge, kind=GROUP)
    judge.apply([(acl_id(9), rule(principal="User:carol"))])
    judge.apply((), [acl_id(0)])
    assert not may(judge), "carol's rule is still there"
    judge.apply((), [acl_id(9)])
    assert may(judge)
    assert not may(judge, name="logs-1")
    judge.apply((), [acl_id(1)])
    assert may(judge, name="logs-1")
    assert len(judge) == 0


def test_a_rule_that_a_log_holds_twice_counts_until_both_are_gone() -> None:
    judge = authorizer(rule(permission=DENY), rule(permission=DENY), rule())
    judge.apply((), [acl_id(0)])
    assert not may(judge)
    judge.apply((), [acl_id(1)])
    assert may(judge)


def test_what_a_newer_node_has_written_denies() -> None:
    strange = rule(permission=AclPermissionType.UNKNOWN)
    judge = authorizer(rule(), strange, rule(permission=DENY))
    assert not may(judge)
    judge.apply((), [acl_id(1)])
    assert not may(judge), "the rule that is known is another one"


def test_every_change_is_another_version() -> None:
    judge = authorizer()
    before = judge.version
    judge.apply([(acl_id(1), rule())])
    assert judge.version != before
    # Under an id that there is: in its place.
    judge.apply([(acl_id(1), rule("else"))])
    assert not may(judge)
    assert len(judge) == 1
    judge.apply((), [acl_id(77)])
    assert len(judge) == 1


def test_it_says_why() -> None:
    judge = authorizer(
        rule(), rule("ord", WRITE, DENY, pattern=PREFIXED, principal="User:*"), allow_everyone=True
    )

    def why(operation: AclOperation, name: str, principal: KafkaPrincipal = ALICE) -> str:
        return judge.explain(principal, HOST, operation, TOPIC, name).why

    assert judge.explain(ALICE, HOST, DESCRIBE, TOPIC, "orders").rule == rule()
    assert why(READ, "orders") == "by the rule ALLOW READ to User:alice from host * on TOPIC LITERAL 'orders'"
    assert why(WRITE, "orders").startswith("by the rule DENY WRITE to User:* from host *")
    assert why(READ, "orders", BOB) == "there are rules about this resource, but none allows it"
    assert why(READ, "x") == "no rule is about this resource, and allow.everyone.if.no.acl.found=true"
    assert why(READ, "x", KafkaPrincipal("User", "root")) == "User:root is one of super.users"


# --- on any resource of a type


def may_somewhere(judge: StandardAuthorizer, operation: AclOperation = WRITE) -> bool:
    return judge.authorize_by_resource_type(ALICE, HOST, operation, TOPIC)


def test_on_any_resource() -> None:
    assert not may_somewhere(authorizer())
    assert may_somewhere(authorizer(allow_everyone=True))
    assert may_somewhere(authorizer(rule(operation=WRITE)))
    assert may_somewhere(authorizer(rule(operation=ALL)))
    assert may_somewhere(authorizer(rule("*", WRITE)))
    assert may_somewhere(authorizer(rule("a", WRITE, pattern=PREFIXED)))
    assert not may_somewhere(authorizer(rule(operation=READ)))
    assert not may_somewhere(authorizer(rule(operation=WRITE)), DESCRIBE), "nothing is implied here"
    assert not may_somewhere(authorizer(rule(operation=WRITE, kind=GROUP)))
    assert not may_somewhere(authorizer(rule(operation=WRITE, host="10.0.0.2")))
    root = KafkaPrincipal("User", "root")
    denied = authorizer(rule("*", ALL, DENY, principal="User:*"))
    assert denied.authorize_by_resource_type(root, HOST, WRITE, TOPIC)


def test_on_any_resource_that_is_not_denied() -> None:
    allowed = rule("abc", WRITE)
    prefix = rule("abc", WRITE, pattern=PREFIXED)
    assert not may_somewhere(authorizer(allowed, rule("abc", WRITE, DENY)))
    assert not may_somewhere(authorizer(allowed, rule("ab", ALL, DENY, pattern=PREFIXED)))
    assert not may_somewhere(authorizer(allowed, rule("*", WRITE, DENY)))
    assert not may_somewhere(authorizer(prefix, rule("abc", WRITE, DENY, pattern=PREFIXED)))
    assert may_somewhere(authorizer(prefix, rule("abc", WRITE, DENY))), "one of many"
    assert may_somewhere(authorizer(allowed, rule("abcd", WRITE, DENY, pattern=PREFIXED)))
    assert may_somewhere(authorizer(allowed, rule("x", WRITE), rule("abc", WRITE, DENY)))
    assert may_somewhere(authorizer(rule("*", WRITE), rule("a", WRITE, DENY, pattern=PREFIXED)))


# --- settings


def test_super_users() -> None:
    assert parse_super_users(" User:CN=a,OU=b ;;User:admin; ") == {
        KafkaPrincipal("User", "CN=a,OU=b"),
        KafkaPrincipal("User", "admin"),
    }
    assert parse_super_users("") == frozenset()
    with pytest.raises(ConfigError, match="principalType:principalName but got admin"):
        parse_super_users("User:a;admin")


# --- decisions that are kept


class Counting(StandardAuthorizer):
    """Counts what it is asked."""

    asked = 0

    def authorize(
        self,
        principal: KafkaPrincipal,
        host: str,
        operation: AclOperation,
        resource_type: ResourceType,
        name: str,
    ) -> bool:
        self.asked += 1
        return super().authorize(principal, host, operation, resource_type, name)


def test_a_decision_is_kept_until_the_rules_change() -> None:
    judge = Counting()
    judge.apply([(acl_id(1), rule())])
    kept = Decisions(judge, ALICE, HOST)
    assert [kept.allows(READ, TOPIC, "orders") for _ in range(3)] == [True] * 3
    assert not kept.allows(WRITE, TOPIC, "orders")
    assert judge.asked == 2
    judge.apply((), [acl_id(1)])
    assert not kept.allows(READ, TOPIC, "orders"), "a right taken away"
    judge.apply([(acl_id(1), rule())])
    assert kept.allows(READ, TOPIC, "orders")
    assert judge.asked == 4


def test_a_client_that_names_a_million_topics_fills_nothing() -> None:
    judge = Counting()
    judge.apply([(acl_id(1), rule("t", pattern=PREFIXED))])
    kept = Decisions(judge, ALICE, HOST)
    long = "t" * (MAX_KEPT_NAME_LENGTH + 1)
    assert kept.allows(READ, TOPIC, long)
    assert kept.allows(READ, TOPIC, long)
    assert judge.asked == 2
    for number in range(3 * MAX_KEPT_DECISIONS):
        assert kept.allows(READ, TOPIC, f"t{number}")
        assert not kept.allows(READ, GROUP, f"t{number}")
        kept.is_news(READ, GROUP, f"t{number}")
    assert len(kept._kept) == MAX_KEPT_DECISIONS
    assert len(kept._told) <= MAX_KEPT_DECISIONS
    judge.asked = 0
    assert kept.allows(READ, TOPIC, "t0"), "what came first stays"
    assert judge.asked == 0


def test_a_denial_is_told_of_once_until_the_rules_change() -> None:
    judge = authorizer()
    kept = Decisions(judge, ALICE, HOST)
    assert not kept.allows(READ, TOPIC, "orders")
    assert [kept.is_news(READ, TOPIC, "orders") for _ in range(3)] == [True, False, False]
    judge.apply(())
    assert not kept.allows(READ, TOPIC, "orders")
    assert kept.is_news(READ, TOPIC, "orders")


# ---- by the configuration -----------------------------------------------------------------------------------


def test_kafkas_own_is_known_by_its_name() -> None:
    made = make_authorizer(
        f" {STANDARD} ",
        {"super.users": "User:CN=a,OU=b; User:root;", "allow.everyone.if.no.acl.found": " TRUE "},
    )
    assert type(made) is StandardAuthorizer
    assert may(made)
    assert may(made, principal=KafkaPrincipal("User", "CN=a,OU=b"))
    made.apply([(acl_id(1), rule("*", ALL, DENY, principal="User:*"))])
    assert not may(made)
    assert may(made, principal=KafkaPrincipal("User", "CN=a,OU=b"))


@pytest.mark.parametrize("path", [None, ""])
def test_without_a_class_nobody_is_judged(path: str | None) -> None:
    assert make_authorizer(path, {}) is None


class Office:
    """Lets everybody in who is called like the topic, and counts how often it is asked."""

    version = 3

    def configure(self, configs: dict[str, str]) -> None:
        self.asked = 0
        self.settings = configs

    def authorize(
        self, principal: KafkaPrincipal, host: str, operation: AclOperation, kind: ResourceType, name: str
    ) -> bool:
        self.asked += 1
        if name == "broken":
            raise ValueError("no idea")
        return principal.name == name


class Own(StandardAuthorizer):
    """Kafka's, and bob may all the same."""

    def authorize(
        self,
        principal: KafkaPrincipal,
        host: str,
        operation: AclOperation,
        resource_type: ResourceType,
        name: str,
    ) -> bool:
        return principal == BOB or super().authorize(principal, host, operation, resource_type, name)


class Nothing:
    """Cannot be asked."""


class Unfinished:
    def configure(self, configs: dict[str, str]) -> None:
        raise KeyError("office.door")


def test_a_class_of_ones_own(caplog: pytest.LogCaptureFixture) -> None:
    made = make_authorizer(f"{__name__}.Office", {"office.door": "open"})
    assert isinstance(made, CustomAuthorizer)
    assert not made.decides_by_acls
    asked = (HOST, READ, TOPIC)
    assert made.authorize(ALICE, *asked, "alice")
    assert not made.authorize(ALICE, *asked, "bob")
    assert made.explain(ALICE, *asked, "alice") == (True, None, "Office says so")
    assert not made.authorize_by_resource_type(ALICE, *asked)
    office = made._inner
    assert office.settings == {"office.door": "open"}
    # What it says is kept until its version changes.
    about, before = Decisions(made, ALICE, HOST), office.asked
    assert all(about.allows(READ, TOPIC, "alice") for _ in range(3))
    assert office.asked == before + 1
    office.version = 4
    assert about.allows(READ, TOPIC, "alice")
    assert office.asked == before + 2
    # An exception is no permission, and is told once.
    assert not made.authorize(ALICE, *asked, "broken")
    assert not made.explain(ALICE, *asked, "broken").allowed
    assert len(caplog.messages) == 1
    assert "no idea" in caplog.messages[0]


def test_without_a_version_nothing_is_kept() -> None:
    made = make_authorizer(f"{__name__}:Office", {})
    assert made is not None
    del type(made._inner).version
    try:
        about = Decisions(made, ALICE, HOST)
        assert all(about.allows(READ, TOPIC, "alice") for _ in range(3))
        assert made._inner.asked == 3
    finally:
        Office.version = 3


def test_what_is_said_that_is_no_yes_is_a_no() -> None:
    class Vague:
        def authorize(self, *asked: object) -> object:
            return "perhaps"

    assert not CustomAuthorizer(Vague()).authorize(ALICE, HOST, READ, TOPIC, "t")


def test_one_that_inherits_is_given_rules() -> None:
    made = make_authorizer(f"{__name__}.Own", {"super.users": "User:root"})
    assert isinstance(made, Own)
    assert made.decides_by_acls
    assert made.authorize(BOB, HOST, READ, TOPIC, "t")
    assert not made.authorize(ALICE, HOST, READ, TOPIC, "t")


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("kafka.security.authorizer.AclAuthorizer", "No module named"),
        ("Authorizer", "no module is named"),
        (" ", "no module is named"),
        (f"{__name__}.Missing", "has no attribute 'Missing'"),
        (f"{__name__}.Nothing", "the class has no method authorize"),
        (f"{__name__}.Unfinished", "office.door"),
    ],
)
def test_what_is_no_authorizer_keeps_the_node_from_starting(path: str, words: str) -> None:
    with pytest.raises(ConfigError) as refused:
        make_authorizer(path, {})
    assert words in str(refused.value)
    assert "\n" not in str(refused.value)
    assert refused.value.key == "authorizer.class.name"


def test_super_users_that_are_none_keep_it_too() -> None:
    with pytest.raises(ConfigError, match="principalType:principalName"):
        make_authorizer(STANDARD, {"super.users": "admin"})


# ---- loading, and changes that take a while -----------------------------------------------------------------


def test_while_rules_are_loaded_only_super_users_are_judged() -> None:
    judge = authorizer(rule(), allow_everyone=True)
    about = Decisions(judge, ALICE, HOST)
    assert about.allows(READ, TOPIC, "orders")
    judge.begin_loading()
    assert judge.authorize(KafkaPrincipal("User", "root"), HOST, READ, TOPIC, "orders")
    for ask in (
        lambda: judge.authorize(ALICE, HOST, READ, TOPIC, "orders"),
        lambda: judge.authorize_by_resource_type(ALICE, HOST, READ, TOPIC),
        lambda: about.allows(READ, TOPIC, "orders"),
    ):
        with pytest.raises(KafkaError) as refused:
            ask()
        assert refused.value.code is ErrorCode.UNKNOWN_SERVER_ERROR
    assert judge.explain(ALICE, HOST, READ, TOPIC, "orders") == (False, None, "the rules are not loaded yet")
    judge.complete_initial_load()
    assert about.allows(READ, TOPIC, "orders")


RULES = st.builds(
    rule,
    st.sampled_from(["orders", "or", "*"]),
    st.sampled_from([READ, WRITE, ALL]),
    st.sampled_from([ALLOW, DENY]),
    pattern=st.sampled_from([LITERAL, PREFIXED]),
    principal=st.sampled_from(["User:alice", "User:bob", "User:*"]),
)


@given(
    st.lists(RULES, max_size=6),
    st.lists(RULES, max_size=6),
    st.sets(st.integers(0, 9)),
    st.booleans(),
)
def test_in_the_middle_of_a_change_nobody_may_what_they_may_neither_before_nor_after(
    before: list[AclBinding], new: list[AclBinding], removed: set[int], allow_everyone: bool
) -> None:
    """Also where a rule takes the place of another, under its id; and nobody is refused that is not before or after.

    Except where resources without rules are everybody's: the first rule about one shuts out whom the next lets in.
    """
    judge = authorizer(*before, allow_everyone=allow_everyone)
    change = ([(acl_id(number + 3), each) for number, each in enumerate(new)], [acl_id(n) for n in removed])
    after = authorizer(*before, allow_everyone=allow_everyone)
    after.apply(*change)
    old = decisions_of(judge)
    with patch.object(module, "RULES_PER_STEP", 1):
        seen = [decisions_of(judge) for _ in judge.apply_in_steps(*change)]
    ends = decisions_of(after)
    assert decisions_of(judge) == ends
    for middle in seen:
        for now, earlier, later in zip(middle, old, ends, strict=True):
            assert now in (earlier, later) or (allow_everyone and not now)


def decisions_of(judge: StandardAuthorizer) -> list[bool]:
    return [
        judge.authorize(principal, HOST, operation, TOPIC, name)
        for operation in (READ, WRITE, DESCRIBE)
        for name in ("orders", "or", "x")
        for principal in (ALICE, BOB)
    ]


def test_topics_that_may_be_written_to_and_read_are_known_until_rules_change() -> None:
    judge = StandardAuthorizer()
    rule_id, topic_id = Uuid(bytes(16)), b"\1" * 16
    write = AclBinding(
        ResourceType.TOPIC,
        "a",
        PatternType.PREFIXED,
        "User:alice",
        "*",
        AclOperation.WRITE,
        AclPermissionType.ALLOW,
    )
    judge.apply([(rule_id, write)])
    about = Decisions(judge, ALICE, HOST)
    assert about.allows_to_write("ab", "ab")
    assert about.allows_to_write(topic_id, "ab")
    assert not about.allows_to_write("b", "b")
    assert not about.allows_to_read("ab", "ab")
    assert (about.writable, about.readable) == ({"ab", topic_id}, set())
    judge.apply([], [rule_id])
    assert about.version != judge.version, "nobody goes by them any more"
    assert not about.allows_to_read("ab", "ab")
    assert (about.version, about.writable) == (judge.version, set())
    assert not about.allows_to_write(topic_id, "ab")


def test_topics_that_are_known_to_be_allowed_are_not_too_many() -> None:
    about = Decisions(StandardAuthorizer([ALICE]), ALICE, HOST)
    assert about.allows_to_read("x" * 30_000, "x" * 30_000)
    for number in range(2_000):
        assert about.allows_to_write(f"t{number}", f"t{number}")
        assert about.allows_to_read(f"t{number}", f"t{number}")
    assert (len(about.writable), len(about.readable)) == (500, 500)
    assert max(map(len, about.readable)) < 10


def allowing(principal: str = "User:alice", host: str = "*") -> AclBinding:
    operation, allow = AclOperation.WRITE, AclPermissionType.ALLOW
    return AclBinding(ResourceType.TOPIC, "ab", PatternType.LITERAL, principal, host, operation, allow)


def test_what_somebody_may_is_known_for_all_their_connections_until_rules_change() -> None:
    judge = StandardAuthorizer()
    judge.apply([(Uuid(bytes(16)), allowing())])
    assert Decisions(judge, ALICE, HOST).allows_to_write("ab", "ab")
    assert not Decisions(judge, BOB, HOST).allows_to_write("ab", "ab")
    assert not Decisions(judge, ALICE, HOST).allows_to_read("ab", "ab")
    assert (judge.writable, judge.readable) == ({(ALICE, "ab")}, set())
    judge.apply([(Uuid(bytes([1] * 16)), allowing("User:carol"))])
    assert judge.writable == set(), "whatever has changed"
    assert Decisions(judge, ALICE, HOST).allows_to_write("ab", "ab")
    for change in (judge.begin_loading, judge.complete_initial_load, lambda: judge.configure({})):
        judge.readable.add((ALICE, "ab"))
        judge.writable.add((ALICE, "ab"))
        change()
        assert (judge.writable, judge.readable) == (set(), set())


def test_where_any_rule_is_about_a_host_nothing_is_known_for_all_connections() -> None:
    judge = StandardAuthorizer()
    ids = [Uuid(bytes([number] * 16)) for number in range(3)]
    # Under two ids: it counts until both are gone.
    judge.apply([(ids[0], allowing()), *((each, allowing("User:bob", HOST)) for each in ids[1:])])
    about = Decisions(judge, BOB, HOST)
    assert about.allows_to_write("ab", "ab")
    assert not Decisions(judge, BOB, "10.0.0.9").allows_to_write("ab", "ab")
    assert Decisions(judge, ALICE, HOST).allows_to_write("ab", "ab")
    assert (judge.writable, about.writable) == (set(), {"ab"})
    judge.apply([], [ids[1]])
    assert Decisions(judge, ALICE, HOST).allows_to_write("ab", "ab")
    assert judge.writable == set()
    judge.apply([], [ids[2]])
    assert Decisions(judge, ALICE, HOST).allows_to_write("ab", "ab")
    assert judge.writable == {(ALICE, "ab")}


def test_of_a_class_that_is_made_of_it_nothing_is_known_for_all_connections() -> None:
    class Own(StandardAuthorizer):
        def authorize(self, principal: KafkaPrincipal, host: str, *asked: object) -> bool:
            return host == HOST

    judge = Own()
    assert Decisions(judge, ALICE, HOST).allows_to_write("ab", "ab")
    assert judge.writable == set()


def test_what_is_known_of_all_is_not_too_much() -> None:
    judge = StandardAuthorizer([ALICE])
    for number in range(MAX_KNOWN + 1):
        Decisions(judge, ALICE, HOST).allows_to_read(f"t{number}", f"t{number}")
        assert 0 < len(judge.readable) <= MAX_KNOWN
