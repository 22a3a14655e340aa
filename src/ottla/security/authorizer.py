"""Authorizer, who decides what a principal may do; StandardAuthorizer decides by the rules of the metadata log.

`authorizer.class.name` names Kafka's StandardAuthorizer, or a Python class by its import path, in the configuration
file alone. Such a class has a constructor without arguments and these methods, of which only `authorize` is a must:

    class Office:
        def configure(self, configs: Mapping[str, str]) -> None: ...       # the node's settings, once
        def authorize(
            self, principal: KafkaPrincipal, host: str, operation: AclOperation, resource_type: ResourceType, name: str
        ) -> bool: ...
        def authorize_by_resource_type(self, principal, host, operation, resource_type) -> bool: ...
        def explain(self, principal, host, operation, resource_type, name) -> Decision: ...     # for the log
        def apply(self, added: Iterable[tuple[Uuid, AclBinding]], removed: Iterable[Uuid]) -> None: ...
        def close(self) -> None: ...                                       # when the node stops

It is asked on the node's loop and must not wait. What it says may be kept until its attribute `version` changes;
without one nothing is kept. Whoever it raises an exception about is refused. With `apply` it is given the rules of the
metadata log before a broker serves anybody (a controller's early listeners may ask before), and every change; without,
the cluster has no rules to show or to change. Or it inherits from StandardAuthorizer.

Rules of StandardAuthorizer, as in Kafka's StandardAuthorizerData: super users may do everything. Otherwise those rules
count whose resource is the one asked for (literal), begins it (prefixed) or is `*`, and that are about the principal or
`User:*`, from its host or `*`. One DENY among them is the end of it. An ALLOW of READ, WRITE, DELETE or ALTER is one of
DESCRIBE too, and one of ALTER_CONFIGS is one of DESCRIBE_CONFIGS; a DENY means what it says. If no rule at all is about
the resource, whoever it names, `allow.everyone.if.no.acl.found` decides; what has been removed leaves nothing behind by
which a resource would seem to have rules (CVE-2024-27309).

Cost: a decision looks up the resource's name and its beginnings of the lengths that there are rules for, and there the
principal and its host, never all rules. A change costs what has changed. Owned by the node's loop, on which it is asked
and changed. apply() is one step; apply_in_steps() lets others have the loop, and what somebody may meanwhile they may
before or afterwards.
"""

import logging
from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import count
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from ottla.config.errors import ConfigError
from ottla.model.errors import ErrorCode, KafkaError
from ottla.model.ids import Uuid
from ottla.model.plugins import find_class
from ottla.model.time_slice import Steps, run_to_end
from ottla.security.acls import (
    WILDCARD,
    AclBinding,
    AclOperation,
    AclPermissionType,
    PatternType,
    ResourceType,
    operation_bits,
)
from ottla.security.principal import USER, KafkaPrincipal, parse_principal

if TYPE_CHECKING:
    from ottla.security.audit import AuditLog

log = logging.getLogger("ottla.authorizer")

CLASS_NAME: Final = "authorizer.class.name"
SUPER_USERS: Final = "super.users"
ALLOW_EVERYONE: Final = "allow.everyone.if.no.acl.found"
STANDARD: Final = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
# Rules that come or go in one step of a change: some tenths of a millisecond.
RULES_PER_STEP: Final = 32
# The name that Kafka asks for where any resource would do.
_SOME_NAME: Final = "hardcode"


class Decision(NamedTuple):
    """May they, by which rule, and why, for people."""

    allowed: bool
    rule: AclBinding | None
    why: str


# Somebody, and a topic by its name or id, as a request has it.
Known = tuple[KafkaPrincipal, str | bytes]


class Authorizer(Protocol):
    """Kafka's Authorizer, as far as requests ask it. Resources are literal; hosts are spelled by host_address()."""

    @property
    def version(self) -> int:
        """Changes whenever decisions may have changed: until then they may be kept."""

    @property
    def decides_by_acls(self) -> bool:
        """Is it given the rules of the metadata log?"""

    @property
    def decides_by_host(self) -> bool:
        """May what somebody may do depend on where they are?"""

    @property
    def writable(self) -> Collection[Known]:
        """Who is known to be allowed to write to which topic, wherever they are; good for one request."""

    @property
    def readable(self) -> Collection[Known]:
        """The same of reading."""

    def authorize(
        self,
        principal: KafkaPrincipal,
        host: str,
        operation: AclOperation,
        resource_type: ResourceType,
        name: str,
    ) -> bool: ...

    def authorize_by_resource_type(
        self, principal: KafkaPrincipal, host: str, operation: AclOperation, resource_type: ResourceType
    ) -> bool:
        """Is there any resource of this type on which they may?"""

    def explain(
        self,
        principal: KafkaPrincipal,
        host: str,
        operation: AclOperation,
        resource_type: ResourceType,
        name: str,
    ) -> Decision:
        """What authorize() says, and the rule that decides it."""


def parse_super_users(text: str) -> frozenset[KafkaPrincipal]:
    """`User:CN=a,OU=b;User:admin`; ConfigError for one that is no principal."""
    found: set[KafkaPrincipal] = set()
    for part in filter(None, map(str.strip, text.split(";"))):
        principal = parse_principal(part)
        if principal is None:
            raise ConfigError(
                f"{SUPER_USERS}: expected a string in format principalType:principalName but got {part}",
                SUPER_USERS,
                reason="principals as Type:name, separated by semicolons",
                value=text,
            )
        found.add(principal)
    return frozenset(found)


# --- the rules, by what is asked for

# A principal's type and name, and a host.
_Who = tuple[str, str, str]
_ANYBODY: Final = (USER, WILDCARD)
_ALL: Final = operation_bits((AclOperation.ALL,))
# The bits of which one is enough, by the operation asked for.
_DENYING: Final = {operation: _ALL | 1 << operation for operation in AclOperation}
_ALLOWING: Final = {
    **_DENYING,
    AclOperation.DESCRIBE: _ALL
    | operation_bits(
        (
            AclOperation.DESCRIBE,
            AclOperation.READ,
            AclOperation.WRITE,
            AclOperation.DELETE,
            AclOperation.ALTER,
        )
    ),
    AclOperation.DESCRIBE_CONFIGS: _ALL
    | operation_bits((AclOperation.DESCRIBE_CONFIGS, AclOperation.ALTER_CONFIGS)),
}


class _Grants:
    """What the rules of one pattern say of one principal and host: operations as bits."""

    __slots__ = ("allowed", "denied")

    def __init__(self) -> None:
        self.allowed = 0
        self.denied = 0


class _Pattern(NamedTuple):
    """A resource pattern that has rules, and what they say."""

    name: str
    type: PatternType
    grants: dict[_Who, _Grants]


class _Resources:
    """The patterns of one resource type that have rules; one without any is gone."""

    __slots__ = ("_lengths", "_literal", "_prefixed")

    def __init__(self) -> None:
        self._literal: dict[str, _Pattern] = {}
        self._prefixed: dict[str, _Pattern] = {}
        # How many prefixes have this length.
        self._lengths: dict[int, int] = {}

    def __bool__(self) -> bool:
        return bool(self._literal or self._prefixed)

    def matching(self, name: str) -> list[_Pattern]:
        """The patterns that a resource of this name falls under."""
        found = []
        if (pattern := self._literal.get(name)) is not None:
            found.append(pattern)
        if (pattern := self._literal.get(WILDCARD)) is not None:
            found.append(pattern)
        size = len(name)
        for length in self._lengths:
            if length <= size and (pattern := self._prefixed.get(name[:length])) is not None:
                found.append(pattern)
        return found

    def add(self, binding: AclBinding, who: _Who) -> None:
        pattern = self._table(binding).get(binding.name)
        if pattern is None:
            pattern = self._begin(binding)
        grants = pattern.grants.setdefault(who, _Grants())
        if binding.permission is AclPermissionType.ALLOW:
            grants.allowed |= 1 << binding.operation
        else:
            grants.denied |= 1 << binding.operation

    def remove(self, binding: AclBinding, who: _Who) -> None:
        pattern = self._table(binding)[binding.name]
        grants = pattern.grants[who]
        if binding.permission is AclPermissionType.ALLOW:
            grants.allowed &= ~(1 << binding.operation)
        else:
            grants.denied &= ~(1 << binding.operation)
        if not grants.allowed | grants.denied:
            del pattern.grants[who]
        if not pattern.grants:
            self._end(binding)

    def _table(self, binding: AclBinding) -> dict[str, _Pattern]:
        return self._literal if binding.pattern_type is PatternType.LITERAL else self._prefixed

    def _begin(self, binding: AclBinding) -> _Pattern:
        pattern = self._table(binding)[binding.name] = _Pattern(binding.name, binding.pattern_type, {})
        if binding.pattern_type is not PatternType.LITERAL:
            length = len(binding.name)
            self._lengths[length] = self._lengths.get(length, 0) + 1
        return pattern

    def _end(self, binding: AclBinding) -> None:
        del self._table(binding)[binding.name]
        if binding.pattern_type is not PatternType.LITERAL:
            length = len(binding.name)
            self._lengths[length] -= 1
            if not self._lengths[length]:
                del self._lengths[length]


class _Names:
    """The resources of one type on which somebody may, or may not, do one operation."""

    __slots__ = ("literal", "prefixed")

    def __init__(self) -> None:
        self.literal: set[str] = set()
        self.prefixed: set[str] = set()

    def of(self, pattern_type: PatternType) -> set[str]:
        return self.literal if pattern_type is PatternType.LITERAL else self.prefixed


_Holder = tuple[ResourceType, _Who, AclOperation, AclPermissionType]


class StandardAuthorizer:
    """Decides by the rules it has been given."""

    decides_by_acls = True

    def __init__(
        self, super_users: Iterable[KafkaPrincipal] = (), *, allow_everyone_if_no_acl_found: bool = False
    ) -> None:
        self.version = 0
        # What everybody asks all day is looked for here first; Decisions note it, and it is gone when rules change.
        self.writable: set[Known] = set()
        self.readable: set[Known] = set()
        self._rules_by_host = 0
        self._super_users = frozenset((user.type, user.name) for user in super_users)
        self._allow_everyone = allow_everyone_if_no_acl_found
        # Are there rules that it has not been given yet?
        self._is_loading = False
        self._by_id: dict[Uuid, AclBinding] = {}
        # The log may hold a rule twice, under two ids: it counts until both are gone.
        self._copies: dict[AclBinding, int] = {}
        self._resources: dict[ResourceType, _Resources] = {}
        self._names: dict[_Holder, _Names] = {}

    def __len__(self) -> int:
        return len(self._by_id)

    def configure(self, configs: Mapping[str, str]) -> None:
        """Who is a super user, and what counts where there are no rules; ConfigError."""
        users = parse_super_users(configs.get(SUPER_USERS) or "")
        self._super_users = frozenset((user.type, user.name) for user in users)
        # As Java's parseBoolean: whatever is not true is false.
        self._allow_everyone = (configs.get(ALLOW_EVERYONE) or "").strip().lower() == "true"
        self._decide_anew()

    def _decide_anew(self) -> None:
        self.version += 1
        self.writable.clear()
        self.readable.clear()

    @property
    def decides_by_host(self) -> bool:
        # Of a class that is made of this one nobody knows by what it decides.
        return self._rules_by_host > 0 or type(self) is not StandardAuthorizer

    # --- loading

    def begin_loading(self) -> None:
        """Rules are to come: until all are here only super users are judged at all (AuthorizerNotReadyException)."""
        self._is_loading = True
        self._decide_anew()

    def complete_initial_load(self) -> None:
        """The rules are those of the metadata log."""
        self._is_loading = False
        self._decide_anew()

    # --- changes

    def apply(self, added: Iterable[tuple[Uuid, AclBinding]], removed: Iterable[Uuid] = ()) -> None:
        """Rules go and come; one that comes under the id of another takes its place."""
        run_to_end(self.apply_in_steps(added, removed))

    def apply_in_steps(
        self, added: Iterable[tuple[Uuid, AclBinding]], removed: Iterable[Uuid] = ()
    ) -> Steps[None]:
        """apply(), where there may be thousands.

        What denies comes first and goes last, and what allows comes before other rules go: so nobody may in between
        what they may neither before nor afterwards, also where a resource without rules is everybody's.
        """
        changes = count(1)
        gone: list[AclBinding] = []
        for acl_id in removed:
            if (binding := self._by_id.pop(acl_id, None)) is not None:
                gone.append(binding)
            if next(changes) % RULES_PER_STEP == 0:
                yield
        new: list[AclBinding] = []
        for acl_id, given in added:
            if (binding := self._by_id.pop(acl_id, None)) is not None:
                gone.append(binding)
            self._by_id[acl_id] = binding = _as_judged(given)
            new.append(binding)
            if next(changes) % RULES_PER_STEP == 0:
                yield
        for denies in (True, False):
            for binding in new:
                if (binding.permission is AclPermissionType.DENY) is denies:
                    self._add(binding)
                if next(changes) % RULES_PER_STEP == 0:
                    yield
        for denies in (False, True):
            for binding in gone:
                if (binding.permission is AclPermissionType.DENY) is denies:
                    self._remove(binding)
                if next(changes) % RULES_PER_STEP == 0:
                    yield
        # What has been decided meanwhile is not kept.
        self._decide_anew()

    def _add(self, binding: AclBinding) -> None:
        self._copies[binding] = self._copies.get(binding, 0) + 1
        if self._copies[binding] == 1:
            self._index(binding)

    def _remove(self, binding: AclBinding) -> None:
        self._copies[binding] -= 1
        if not self._copies[binding]:
            del self._copies[binding]
            self._drop(binding)

    def _index(self, binding: AclBinding) -> None:
        who = _who(binding)
        self._rules_by_host += binding.host != WILDCARD
        self._resources.setdefault(binding.resource_type, _Resources()).add(binding, who)
        holder = (binding.resource_type, who, binding.operation, binding.permission)
        self._names.setdefault(holder, _Names()).of(binding.pattern_type).add(binding.name)

    def _drop(self, binding: AclBinding) -> None:
        who = _who(binding)
        self._rules_by_host -= binding.host != WILDCARD
        resources = self._resources[binding.resource_type]
        resources.remove(binding, who)
        if not resources:
            del self._resources[binding.resource_type]
        holder = (binding.resource_type, who, binding.operation, binding.permission)
        names = self._names[holder]
        names.of(binding.pattern_type).discard(binding.name)
        if not (names.literal or names.prefixed):
            del self._names[holder]

    # --- decisions

    def authorize(
        self,
        principal: KafkaPrincipal,
        host: str,
        operation: AclOperation,
        resource_type: ResourceType,
        name: str,
    ) -> bool:
        if (principal.type, principal.name) in self._super_users:
            return True
        if self._is_loading:
            raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, "The authorizer has not loaded its rules yet")
        patterns = self._matching(resource_type, name)
        if not patterns:
            return self._allow_everyone
        allowed = denied = 0
        whoms = _whoms(principal, host)
        for pattern in patterns:
            for who in whoms:
                grants = pattern.grants.get(who)
                if grants is not None:
                    allowed |= grants.allowed
                    denied |= grants.denied
        return not denied & _DENYING[operation] and bool(allowed & _ALLOWING[operation])

    def _matching(self, resource_type: ResourceType, name: str) -> list[_Pattern]:
        resources = self._resources.get(resource_type)
        return resources.matching(name) if resources is not None else []

    def authorize_by_resource_type(
        self, principal: KafkaPrincipal, host: str, operation: AclOperation, resource_type: ResourceType
    ) -> bool:
        """As Kafka's default: an operation that only implies this one does not count."""
        if self.authorize(principal, host, operation, resource_type, _SOME_NAME):
            return True
        asked = (principal, host, operation, resource_type)
        denied = list(self._held(*asked, AclPermissionType.DENY))
        allowed = list(self._held(*asked, AclPermissionType.ALLOW))
        if any(WILDCARD in names.literal for names in denied):
            return False
        if any(WILDCARD in names.literal for names in allowed):
            return True
        return any(
            not _is_denied(name, denied, is_literal=is_literal)
            for names in allowed
            for is_literal, group in ((True, names.literal), (False, names.prefixed))
            for name in group
        )

    def _held(
        self,
        principal: KafkaPrincipal,
        host: str,
        operation: AclOperation,
        resource_type: ResourceType,
        permission: AclPermissionType,
    ) -> Iterator[_Names]:
        for who in _whoms(principal, host):
            for named in (operation, AclOperation.ALL):
                names = self._names.get((resource_type, who, named, permission))
                if names is not None:
                    yield names

    def explain(
        self,
        principal: KafkaPrincipal,
        host: str,
        operation: AclOperation,
        resource_type: ResourceType,
        name: str,
    ) -> Decision:
        if (principal.type, principal.name) in self._super_users:
            return Decision(True, None, f"{principal} is one of {SUPER_USERS}")
        if self._is_loading:
            return Decision(False, None, "the rules are not loaded yet")
        patterns = self._matching(resource_type, name)
        if not patterns:
            setting = f"{ALLOW_EVERYONE}={str(self._allow_everyone).lower()}"
            return Decision(self._allow_everyone, None, f"no rule is about this resource, and {setting}")
        whoms = _whoms(principal, host)
        for permission in (AclPermissionType.DENY, AclPermissionType.ALLOW):
            for pattern in patterns:
                rule = _deciding(pattern, resource_type, whoms, operation, permission)
                if rule is not None:
                    return Decision(permission is AclPermissionType.ALLOW, rule, f"by the rule {rule}")
        return Decision(False, None, "there are rules about this resource, but none allows it")


def _as_judged(binding: AclBinding) -> AclBinding:
    """What a newer node has written and this one does not know counts as Kafka counts it: as a prefix, as DENY."""
    if binding.pattern_type is not PatternType.LITERAL:
        binding = binding._replace(pattern_type=PatternType.PREFIXED)
    if binding.permission is not AclPermissionType.ALLOW:
        binding = binding._replace(permission=AclPermissionType.DENY)
    return binding


def _who(binding: AclBinding) -> _Who:
    principal = parse_principal(binding.principal)
    if principal is None:
        return (":", binding.principal, binding.host)  # only another's log can hold it: a rule about nobody
    return (principal.type, principal.name, binding.host)


def _whoms(principal: KafkaPrincipal, host: str) -> tuple[_Who, _Who, _Who, _Who]:
    """Whom rules may name that are about this principal at this host."""
    return (
        (principal.type, principal.name, host),
        (principal.type, principal.name, WILDCARD),
        (*_ANYBODY, host),
        (*_ANYBODY, WILDCARD),
    )


def _is_denied(name: str, denied: Iterable[_Names], *, is_literal: bool) -> bool:
    """Is every resource of an allowing pattern denied by one other pattern?"""
    for names in denied:
        if is_literal and name in names.literal:
            return True
        if names.prefixed and any(name[:length] in names.prefixed for length in range(1, len(name) + 1)):
            return True
    return False


def _deciding(
    pattern: _Pattern,
    resource_type: ResourceType,
    whoms: Iterable[_Who],
    operation: AclOperation,
    permission: AclPermissionType,
) -> AclBinding | None:
    is_allow = permission is AclPermissionType.ALLOW
    enough = (_ALLOWING if is_allow else _DENYING)[operation]
    for who in whoms:
        grants = pattern.grants.get(who)
        bits = 0 if grants is None else (grants.allowed if is_allow else grants.denied) & enough
        if bits:
            # The operation itself rather than one that implies it.
            found = operation if bits & 1 << operation else AclOperation(bits.bit_length() - 1)
            kind, user, host = who
            return AclBinding(
                resource_type, pattern.name, pattern.type, f"{kind}:{user}", host, found, permission
            )
    return None


# --- by the configuration


def make_authorizer(
    path: str | None, configs: Mapping[str, str]
) -> "StandardAuthorizer | CustomAuthorizer | None":
    """The authorizer of this name; None if nobody is judged. ConfigError."""
    if not path:
        return None
    path = path.strip()
    try:
        made: Any = (StandardAuthorizer if path == STANDARD else find_class(path))()
        if (configure := getattr(made, "configure", None)) is not None:
            configure(dict(configs))
    except ConfigError:
        raise
    except Exception as error:
        raise ConfigError(
            f"{CLASS_NAME}={path}: {error or type(error).__name__} ({STANDARD}, or a Python class by its import path "
            "is expected, such as package.module.Class)",
            CLASS_NAME,
        ) from error
    if isinstance(made, StandardAuthorizer):
        return made
    if not callable(getattr(made, "authorize", None)):
        raise ConfigError(f"{CLASS_NAME}={path}: the class has no method authorize", CLASS_NAME)
    return CustomAuthorizer(made)


class CustomAuthorizer:
    """An authorizer of the operator's own: what it does not have is made up for, and what it raises is a refusal."""

    decides_by_host = True  # as far as anybody knows
    writable: Collection[Known] = frozenset()
    readable: Collection[Known] = frozenset()

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self._asked = count()
        self._has_failed = False
        self.decides_by_acls = callable(getattr(inner, "apply", None))

    @property
    def version(self) -> int:
        """Another one each time, if the class does not say: then nothing is kept."""
        version = getattr(self._inner, "version", None)
        return next(self._asked) if version is None else int(version)

    def authorize(
        self,
        principal: KafkaPrincipal,
        host: str,
        operation: AclOperation,
        resource_type: ResourceType,
        name: str,
    ) -> bool:
        try:
            return self._inner.authorize(principal, host, operation, resource_type, name) is True
        except Exception as error:  # noqa: BLE001 - somebody else's code: no answer is a no
            return self._failed(error)

    def authorize_by_resource_type(
        self, principal: KafkaPrincipal, host: str, operation: AclOperation, resource_type: ResourceType
    ) -> bool:
        if (ask := getattr(self._inner, "authorize_by_resource_type", None)) is None:
            return self.authorize(principal, host, operation, resource_type, _SOME_NAME)
        try:
            return ask(principal, host, operation, resource_type) is True
        except Exception as error:  # noqa: BLE001 - somebody else's code: no answer is a no
            return self._failed(error)

    def explain(
        self,
        principal: KafkaPrincipal,
        host: str,
        operation: AclOperation,
        resource_type: ResourceType,
        name: str,
    ) -> Decision:
        try:
            if (ask := getattr(self._inner, "explain", None)) is not None:
                allowed, rule, why = ask(principal, host, operation, resource_type, name)
                return Decision(bool(allowed), rule, str(why))
        except Exception as error:  # noqa: BLE001 - as above
            self._failed(error)
        allowed = self.authorize(principal, host, operation, resource_type, name)
        return Decision(allowed, None, f"{type(self._inner).__name__} says so")

    def apply(self, added: Iterable[tuple[Uuid, AclBinding]], removed: Iterable[Uuid] = ()) -> None:
        """An exception is the end of the node: it would judge by other rules than there are."""
        self._inner.apply(added, removed)

    def apply_in_steps(
        self, added: Iterable[tuple[Uuid, AclBinding]], removed: Iterable[Uuid] = ()
    ) -> Steps[None]:
        self.apply(added, removed)
        yield

    def close(self) -> None:
        if (close := getattr(self._inner, "close", None)) is not None:
            close()

    def _failed(self, error: Exception) -> bool:
        """Whoever is judged meanwhile may not; that it happens is told once, with its trace."""
        if not self._has_failed:
            self._has_failed = True
            name = type(self._inner).__name__
            log.error("%s failed, and whoever it was asked about is refused: %s", name, error, exc_info=error)
        return False


# --- decisions that are kept

# What is kept of one principal. Beyond it, and for longer names, every decision is made anew: a client that names a
# million topics fills nothing.
MAX_KEPT_DECISIONS: Final = 500
MAX_KEPT_NAME_LENGTH: Final = 249
# What is known of all of them.
MAX_KNOWN: Final = 10_000


class Decisions:
    """What an authorizer says of one principal at one host, kept until rules change. Owned by a connection."""

    __slots__ = (
        "_kept", "_told", "audit", "authorizer", "host", "principal", "readable", "version", "writable",
    )  # fmt: skip

    def __init__(
        self, authorizer: Authorizer, principal: KafkaPrincipal, host: str, audit: "AuditLog | None" = None
    ) -> None:
        self.authorizer = authorizer
        self.principal = principal
        self.host = host
        # Told of every denial, of which it counts the repeated ones.
        self.audit = audit
        # Of the authorizer, when decisions were made: while it has this one they hold.
        self.version = authorizer.version
        self._kept: dict[tuple[AclOperation, ResourceType, str], bool] = {}
        self._told: set[tuple[AclOperation, ResourceType, str]] = set()
        # Topics that may be written to and read, by names or ids as requests have them: for as many steps as can be
        # spared, whoever asks all day looks here first, with the version.
        self.writable: set[str | bytes] = set()
        self.readable: set[str | bytes] = set()

    def allows(self, operation: AclOperation, resource_type: ResourceType, name: str) -> bool:
        if self.version != self.authorizer.version:
            self._begin_anew()
        key = (operation, resource_type, name)
        allowed = self._kept.get(key)
        if allowed is None:
            allowed = self.authorizer.authorize(self.principal, self.host, operation, resource_type, name)
            if len(self._kept) < MAX_KEPT_DECISIONS and len(name) <= MAX_KEPT_NAME_LENGTH:
                self._kept[key] = allowed
        return allowed

    def _begin_anew(self) -> None:
        self.version = self.authorizer.version
        self._kept.clear()
        self._told.clear()
        self.writable.clear()
        self.readable.clear()

    def is_writable(self, topic: str | bytes) -> bool:
        """Is it known that the topic, which a request calls so, may be written to?"""
        return topic in self.writable and self.version == self.authorizer.version

    def allows_to_write(self, topic: str | bytes, name: str) -> bool:
        """To the topic of this name, that a request calls `topic`; the id of a topic is never that of another."""
        return self._allows(AclOperation.WRITE, topic, name, self.writable, self.authorizer.writable)

    def allows_to_read(self, topic: str | bytes, name: str) -> bool:
        """From the topic of this name, that a request calls `topic`."""
        if topic in self.readable and self.version == self.authorizer.version:
            return True
        return self._allows(AclOperation.READ, topic, name, self.readable, self.authorizer.readable)

    def _allows(
        self,
        operation: AclOperation,
        topic: str | bytes,
        name: str,
        known: set[str | bytes],
        known_of_all: Collection[Known],
    ) -> bool:
        allowed = self.allows(operation, ResourceType.TOPIC, name)
        if allowed and len(known) < MAX_KEPT_DECISIONS and len(topic) <= MAX_KEPT_NAME_LENGTH:
            known.add(topic)
            if not self.authorizer.decides_by_host and isinstance(known_of_all, set):
                if len(known_of_all) >= MAX_KNOWN:
                    known_of_all.clear()
                known_of_all.add((self.principal, topic))
        return allowed

    def is_news(self, operation: AclOperation, resource_type: ResourceType, name: str) -> bool:
        """Has a denial not been told of since the rules changed? A client that goes on asking fills no log."""
        key = (operation, resource_type, name)
        if key in self._told:
            return False
        if key in self._kept:
            self._told.add(key)
        return True
