"""StandardAuthorizer against a model that scans all rules, by the words in which they are written; rules come and go.

The model is proven by what it finds: authorizers with a bug planted in them must disagree with it.
"""

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from ottla.model.ids import Uuid
from ottla.security.acls import AclBinding, AclOperation, AclPermissionType, PatternType, ResourceType
from ottla.security.authorizer import Decisions, StandardAuthorizer, _Resources
from ottla.security.principal import KafkaPrincipal

# Few of everything, so that rules meet.
TYPES = (ResourceType.TOPIC, ResourceType.GROUP)
NAMES = ("a", "ab", "abc", "b", "*", "hardcode")
PRINCIPALS = ("User:x", "User:y", "User:*", "Group:x")
HOSTS = ("*", "1", "2")
OPERATIONS = (
    AclOperation.ALL,
    AclOperation.READ,
    AclOperation.WRITE,
    AclOperation.DELETE,
    AclOperation.ALTER,
    AclOperation.DESCRIBE,
    AclOperation.DESCRIBE_CONFIGS,
    AclOperation.ALTER_CONFIGS,
    AclOperation.CREATE,
)
ASKED_OPERATIONS = OPERATIONS[1:]
ASKERS = tuple(
    KafkaPrincipal(kind, name, token)
    for kind, name, token in (
        ("User", "x", False),
        ("User", "x", True),
        ("User", "z", False),
        ("Group", "x", False),
        ("User", "super", False),
    )
)
SUPER = KafkaPrincipal("User", "super")

BINDINGS = st.builds(
    AclBinding,
    st.sampled_from(TYPES),
    st.sampled_from(NAMES),
    st.sampled_from((PatternType.LITERAL, PatternType.PREFIXED)),
    st.sampled_from(PRINCIPALS),
    st.sampled_from(HOSTS),
    st.sampled_from(OPERATIONS),
    st.sampled_from((AclPermissionType.ALLOW, AclPermissionType.DENY)),
)
IDS = st.integers(0, 15).map(lambda number: Uuid(number.to_bytes(16, "big")))
# What comes, and what goes.
CHANGES = st.tuples(st.dictionaries(IDS, BINDINGS, max_size=6), st.sets(IDS, max_size=4))

IMPLIED = {
    AclOperation.DESCRIBE: {
        AclOperation.READ,
        AclOperation.WRITE,
        AclOperation.DELETE,
        AclOperation.ALTER,
    },
    AclOperation.DESCRIBE_CONFIGS: {AclOperation.ALTER_CONFIGS},
}


class Model:
    """A list of rules, and what Kafka's documentation says about them."""

    def __init__(self, allow_everyone: bool) -> None:
        self.allow_everyone = allow_everyone
        self.rules: dict[Uuid, AclBinding] = {}

    def apply(self, added: dict[Uuid, AclBinding], removed: set[Uuid]) -> None:
        for acl_id in removed:
            self.rules.pop(acl_id, None)
        self.rules.update(added)

    def authorize(
        self, who: KafkaPrincipal, host: str, operation: AclOperation, kind: ResourceType, name: str
    ) -> bool:
        if (who.type, who.name) == (SUPER.type, SUPER.name):
            return True
        about = [r for r in self.rules.values() if r.resource_type is kind and self._covers(r, name)]
        if not about:
            return self.allow_everyone
        mine = [r for r in about if r.principal in (str(who), "User:*") and r.host in (host, "*")]
        if any(
            r.permission is AclPermissionType.DENY and r.operation in (operation, AclOperation.ALL)
            for r in mine
        ):
            return False
        enough = {operation, AclOperation.ALL} | IMPLIED.get(operation, set())
        return any(r.permission is AclPermissionType.ALLOW and r.operation in enough for r in mine)

    @staticmethod
    def _covers(rule: AclBinding, name: str) -> bool:
        if rule.pattern_type is PatternType.PREFIXED:
            return name.startswith(rule.name)
        return rule.name in (name, "*")

    def authorize_by_resource_type(
        self, who: KafkaPrincipal, host: str, operation: AclOperation, kind: ResourceType
    ) -> bool:
        if self.authorize(who, host, operation, kind, "hardcode"):
            return True
        mine = [
            r
            for r in self.rules.values()
            if r.resource_type is kind
            and r.principal in (str(who), "User:*")
            and r.host in (host, "*")
            and r.operation in (operation, AclOperation.ALL)
        ]
        literal = PatternType.LITERAL
        denied = [r for r in mine if r.permission is AclPermissionType.DENY]
        allowed = [r for r in mine if r.permission is AclPermissionType.ALLOW]
        if any(r.name == "*" and r.pattern_type is literal for r in denied):
            return False
        if any(r.name == "*" and r.pattern_type is literal for r in allowed):
            return True
        for r in allowed:
            same = any(d.pattern_type is literal and d.name == r.name for d in denied)
            if r.pattern_type is literal and same:
                continue
            if not any(d.pattern_type is not literal and r.name.startswith(d.name) for d in denied):
                return True
        return False


def disagreement(
    judge: StandardAuthorizer, changes: list[tuple[dict[Uuid, AclBinding], set[Uuid]]], everyone: bool
) -> str | None:
    """The first question on which the two differ, after each change; None if they never do."""
    model = Model(everyone)
    # One connection for all of the time: what it keeps must follow the rules.
    kept = [Decisions(judge, who, "1") for who in ASKERS]
    for added, removed in changes:
        judge.apply(added.items(), removed)
        model.apply(added, removed)
        for decisions in kept:
            who, host = decisions.principal, decisions.host
            for kind in TYPES:
                for operation in ASKED_OPERATIONS:
                    for name in (*NAMES, "abcd", "c"):
                        asked = (who, host, operation, kind, name)
                        right = model.authorize(*asked)
                        explained = judge.explain(*asked)
                        answers = (
                            judge.authorize(*asked),
                            decisions.allows(operation, kind, name),
                            explained.allowed,
                        )
                        if answers != (right,) * 3:
                            return f"{asked}: {answers} and not {right}"
                        if explained.rule is not None and explained.rule not in model.rules.values():
                            return f"{asked}: by a rule that is not there, {explained.rule}"
                    of_type = (who, host, operation, kind)
                    right = model.authorize_by_resource_type(*of_type)
                    if judge.authorize_by_resource_type(*of_type) != right:
                        return f"{of_type}: not {right}"
    if len(judge) != len(model.rules):
        return "another number of rules"
    return None


@given(changes=st.lists(CHANGES, max_size=6), everyone=st.booleans())
@settings(max_examples=150, deadline=None)
def test_it_decides_as_the_model_does(
    changes: list[tuple[dict[Uuid, AclBinding], set[Uuid]]], everyone: bool
) -> None:
    judge = StandardAuthorizer([SUPER], allow_everyone_if_no_acl_found=everyone)
    assert disagreement(judge, changes, everyone) is None


@given(changes=st.lists(CHANGES, max_size=6))
@settings(max_examples=100, deadline=None)
def test_when_all_rules_are_gone_nothing_is_left(
    changes: list[tuple[dict[Uuid, AclBinding], set[Uuid]]],
) -> None:
    judge = StandardAuthorizer()
    for added, removed in changes:
        judge.apply(added.items(), removed)
    judge.apply((), list(judge._by_id))
    assert [judge._by_id, judge._copies, judge._resources, judge._names] == [{}] * 4


# --- planted bugs


class DenyIgnored(StandardAuthorizer):
    def authorize(self, *asked):  # type: ignore[no-untyped-def]
        allows = [b for b in self._copies if b.permission is AclPermissionType.ALLOW]
        other = StandardAuthorizer([SUPER], allow_everyone_if_no_acl_found=self._allow_everyone)
        other.apply([(Uuid(n.to_bytes(16, "big")), b) for n, b in enumerate(allows)])
        return other.authorize(*asked)


class StaleIndex(StandardAuthorizer):
    """A rule that is removed stays in force."""

    def _drop(self, binding: AclBinding) -> None: ...


class StalePattern(StandardAuthorizer):
    """A resource whose last rule is gone still counts as one that has rules (CVE-2024-27309)."""

    def _drop(self, binding: AclBinding) -> None:
        super()._drop(binding)
        resources = self._resources.setdefault(binding.resource_type, _Resources())
        if binding.name not in resources._table(binding):
            resources._begin(binding)


class StaleVersion(StandardAuthorizer):
    """Connections are not told that rules have changed."""

    def apply(self, added, removed=()):  # type: ignore[no-untyped-def]
        version = self.version
        super().apply(added, removed)
        self.version = version


class ByTypeForgotten(StandardAuthorizer):
    """What is asked by type does not look at denials."""

    def _held(self, *asked):  # type: ignore[no-untyped-def]
        return iter(()) if asked[-1] is AclPermissionType.DENY else super()._held(*asked)


class TokensAreOthers(StandardAuthorizer):
    """A principal is compared with how it was authenticated."""

    def authorize(self, principal, *asked):  # type: ignore[no-untyped-def]
        return not principal.token_authenticated and super().authorize(principal, *asked)


class Found(Exception):
    """The bug has been noticed."""


@pytest.mark.parametrize(
    "broken", [DenyIgnored, StaleIndex, StalePattern, StaleVersion, ByTypeForgotten, TokensAreOthers]
)
def test_planted_bugs_are_found(broken: type[StandardAuthorizer]) -> None:
    @given(changes=st.lists(CHANGES, min_size=2, max_size=6), everyone=st.booleans())
    @settings(max_examples=300, deadline=None, database=None, derandomize=True, phases=[Phase.generate])
    def search(changes: list[tuple[dict[Uuid, AclBinding], set[Uuid]]], everyone: bool) -> None:
        judge = broken([SUPER], allow_everyone_if_no_acl_found=everyone)
        if disagreement(judge, changes, everyone) is not None:
            raise Found

    with pytest.raises(Found):
        search()
