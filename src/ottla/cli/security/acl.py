"""`ottla acl`: list, add, remove and explain access rules, on whatever cluster has ACLs.

What a producer, a consumer, Kafka Streams or Spark needs is added by one switch. `explain` reads the rules and decides
as the cluster's StandardAuthorizer does; what it cannot see is `super.users`, which no cluster tells. Owned by the
process that runs one command.
"""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from ottla.cli.args import OUTPUT, Command, UsageError, argument, switch
from ottla.cli.client import CLUSTER, admin, report
from ottla.cli.output import counted, emit, emit_json, say

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable, Iterator

    from ottla.security.acls import (
        AclBinding,
        AclBindingFilter,
        AclOperation,
        AclPermissionType,
        PatternType,
        ResourceType,
    )

_COLUMNS = ("principal", "permission", "operation", "resource", "name", "pattern", "host")
_OPERATIONS = (
    *("all", "read", "write", "create", "delete", "alter", "describe", "cluster_action", "describe_configs"),
    *("alter_configs", "idempotent_write", "create_tokens", "describe_tokens", "two_phase_commit"),
)


# ---- reading ------------------------------------------------------------------------------------------------


def _list(args: argparse.Namespace) -> int:
    with admin(args) as client:
        found = client.describe_acls(_filter(args))
    emit([_row(each) for each in found], _COLUMNS, args.output)
    return 0


def _explain(args: argparse.Namespace) -> int:
    """The exit code says it too: 0 if they may, 1 if not."""
    from ottla.model.ids import Uuid
    from ottla.security.acls import WILDCARD, AclBindingFilter, PatternType
    from ottla.security.authorizer import StandardAuthorizer
    from ottla.security.principal import parse_principal

    principal = parse_principal(_principal(args.user))
    assert principal is not None
    (kind, name), operation = _one_resource(args), _operation(args.op)
    with admin(args) as client:
        rules = client.describe_acls(
            AclBindingFilter(resource_type=kind, name=name, pattern_type=PatternType.MATCH)
        )
    judge = StandardAuthorizer()
    judge.apply((Uuid(number.to_bytes(16, "big")), each) for number, each in enumerate(rules))
    host = _host(args.host or WILDCARD)
    decision = judge.explain(principal, host, operation, kind, name)
    missing = None
    if not decision.allowed and decision.rule is None:
        missing = _binding(kind, name, str(principal), operation, host)
    # Rules may be for some hosts only.
    hosts = [] if args.host else sorted({each.host for each in rules} - {WILDCARD})
    elsewhere = {
        each: there
        for each in hosts
        if (there := judge.explain(principal, each, operation, kind, name)).allowed != decision.allowed
    }
    if args.output == "json":
        emit_json(
            {
                "allowed": decision.allowed,
                "rule": None if decision.rule is None else _row(decision.rule),
                "missing": None if missing is None else _row(missing),
                "otherwise_from_hosts": {
                    each: None if there.rule is None else _row(there.rule)
                    for each, there in elsewhere.items()
                },
                "rules_about_the_resource": len(rules),
            }
        )
        return 0 if decision.allowed else 1
    where = f" from host {host}" if args.host else ""
    may = "may" if decision.allowed else "may not"
    print(f"{principal} {may} {operation.name} {kind.name} {name!r}{where}")
    if decision.rule is not None:
        print(f"  by the rule: {decision.rule}")
    if missing is not None:
        about = (
            f"of {counted(len(rules), 'rule')} about it none allows that" if rules else "no rule is about it"
        )
        print(f"  {about}; missing is: {missing}")
        print(f"  to add it: {_command(missing)}")
    for each, there in elsewhere.items():
        print(f"  from host {each} {'they may' if there.allowed else 'they may not'}: {there.why}")
    if not decision.allowed:
        no_rules = "" if rules else ", and where no rule is about it allow.everyone.if.no.acl.found decides"
        say(f"(the cluster does not tell who its super users are: those may all the same{no_rules})")
    return 0 if decision.allowed else 1


# ---- changing -----------------------------------------------------------------------------------------------


def _add(args: argparse.Namespace) -> int:
    wanted = list(dict.fromkeys(_wanted(args)))
    if args.dry_run:
        emit([_row(each) for each in wanted], _COLUMNS, args.output)
        return 0
    with admin(args) as client:
        results = client.create_acls(wanted)
    emit([_row(each) for each, error in results.items() if error is None], _COLUMNS, args.output)
    return report(results.values())


def _remove(args: argparse.Namespace) -> int:
    from ottla.model.errors import KafkaError

    wanted = _filter(args)
    if wanted == _everything() and not args.all:
        raise UsageError("this would remove every rule there is: say which ones, or --all")
    with admin(args) as client:
        if args.dry_run:
            found = client.describe_acls(wanted)
        else:
            (outcome,) = client.delete_acls([wanted]).values()
            if isinstance(outcome, KafkaError):
                return report([outcome])
            found = outcome
    emit([_row(each) for each in found], _COLUMNS, args.output)
    say(f"{counted(len(found), 'rule')} {'would be ' if args.dry_run else ''}removed")
    return 0


def _wanted(args: argparse.Namespace) -> Iterator[AclBinding]:
    """The rules that the words on the command line ask for."""
    roles = [role for role in _ROLES if getattr(args, role)]
    if roles and (args.op or args.deny or args.cluster or args.token_user or args.delegation_token):
        raise UsageError(f"--{roles[0]} says which operations on which resources; leave the others out")
    if not args.user:
        raise UsageError("for whom? --user NAME")
    for user in args.user:
        for host in map(_host, args.host or ["*"]):
            if roles:
                for role in roles:
                    yield from _ROLES[role](args, _principal(user), host)
            else:
                yield from _plain(args, _principal(user), host)


def _plain(args: argparse.Namespace, principal: str, host: str) -> Iterator[AclBinding]:
    from ottla.security.acls import SUPPORTED_OPERATIONS, AclOperation, AclPermissionType, PatternType

    resources = list(_resources(args))
    if not resources:
        raise UsageError("on what? --topic, --group, --transactional-id, --cluster, ...")
    if not args.op:
        raise UsageError(f"which operation? --op, one of {', '.join(_OPERATIONS)}")
    permission = AclPermissionType.DENY if args.deny else AclPermissionType.ALLOW
    pattern = PatternType.PREFIXED if args.prefixed else PatternType.LITERAL
    for kind, name in resources:
        for operation in map(_operation, args.op):
            if operation is not AclOperation.ALL and operation not in SUPPORTED_OPERATIONS[kind]:
                known = ", ".join(each.name.lower() for each in SUPPORTED_OPERATIONS[kind])
                raise UsageError(f"{operation.name} means nothing for a {kind.name}; {known}, all do")
            yield _binding(kind, name, principal, operation, host, permission, pattern)


def _producer(args: argparse.Namespace, principal: str, host: str) -> Iterator[AclBinding]:
    """Writes to the topics, and makes them; with a transactional id, if one is named."""
    from ottla.security.acls import AclOperation as Op
    from ottla.security.acls import ResourceType

    yield from _each(args, ResourceType.TOPIC, _needed(args, "topic"), principal, host, Op.WRITE, Op.CREATE)
    yield from _each(
        args, ResourceType.TRANSACTIONAL_ID, args.transactional_id, principal, host, Op.WRITE, Op.DESCRIBE
    )


def _consumer(args: argparse.Namespace, principal: str, host: str) -> Iterator[AclBinding]:
    """Reads the topics as a member of the groups."""
    from ottla.security.acls import AclOperation as Op
    from ottla.security.acls import ResourceType

    yield from _each(args, ResourceType.TOPIC, _needed(args, "topic"), principal, host, Op.READ)
    yield from _each(args, ResourceType.GROUP, _needed(args, "group"), principal, host, Op.READ)


def _streams(args: argparse.Namespace, principal: str, host: str) -> Iterator[AclBinding]:
    """Reads and writes the topics; the applications, which are the groups, have internal topics and transactions."""
    from ottla.security.acls import AclOperation as Op
    from ottla.security.acls import PatternType, ResourceType

    yield from _each(args, ResourceType.TOPIC, args.topic, principal, host, Op.READ, Op.WRITE)
    for application in _needed(args, "group"):
        yield _binding(ResourceType.GROUP, application, principal, Op.READ, host)
        yield _binding(ResourceType.GROUP, application, principal, Op.DELETE, host)
        for operation in (Op.READ, Op.WRITE, Op.CREATE, Op.DELETE, Op.ALTER, Op.DESCRIBE_CONFIGS):
            yield _binding(
                ResourceType.TOPIC,
                f"{application}-",
                principal,
                operation,
                host,
                pattern=PatternType.PREFIXED,
            )
        for operation in (Op.WRITE, Op.DESCRIBE):
            yield _binding(
                ResourceType.TRANSACTIONAL_ID,
                f"{application}-",
                principal,
                operation,
                host,
                pattern=PatternType.PREFIXED,
            )


def _spark(args: argparse.Namespace, principal: str, host: str) -> Iterator[AclBinding]:
    """Reads and writes the topics; groups and transactional ids are those that Ottla's and Apache's connectors make."""
    from ottla.security.acls import AclOperation as Op
    from ottla.security.acls import PatternType, ResourceType

    yield from _each(
        args, ResourceType.TOPIC, _needed(args, "topic"), principal, host, Op.READ, Op.WRITE, Op.CREATE
    )
    prefixed = PatternType.PREFIXED
    for group in args.group or SPARK_GROUPS:
        yield _binding(ResourceType.GROUP, group, principal, Op.READ, host, pattern=prefixed)
        yield _binding(ResourceType.GROUP, group, principal, Op.DELETE, host, pattern=prefixed)
    for name in args.transactional_id or SPARK_TRANSACTIONS:
        for operation in (Op.WRITE, Op.DESCRIBE):
            yield _binding(ResourceType.TRANSACTIONAL_ID, name, principal, operation, host, pattern=prefixed)


# What the names of Spark's groups and transactional ids begin with, unless its options say otherwise.
SPARK_GROUPS = ("ottla-spark", "spark-kafka-")
SPARK_TRANSACTIONS = ("ottla-spark",)
_ROLES = {"producer": _producer, "consumer": _consumer, "streams": _streams, "spark": _spark}


def _needed(args: argparse.Namespace, what: str) -> list[str]:
    names: list[str] = getattr(args, what)
    if not names:
        raise UsageError(f"--{what} NAME is needed")
    return names


def _each(
    args: argparse.Namespace,
    kind: ResourceType,
    names: Iterable[str],
    principal: str,
    host: str,
    *operations: AclOperation,
) -> Iterator[AclBinding]:
    from ottla.security.acls import PatternType

    pattern = PatternType.PREFIXED if args.prefixed else PatternType.LITERAL
    for name in names:
        for operation in operations:
            yield _binding(kind, name, principal, operation, host, pattern=pattern)


# ---- words to rules, and back -------------------------------------------------------------------------------


def _binding(
    kind: ResourceType,
    name: str,
    principal: str,
    operation: AclOperation,
    host: str = "*",
    permission: AclPermissionType | None = None,
    pattern: PatternType | None = None,
) -> AclBinding:
    from ottla.security.acls import AclBinding, AclPermissionType, PatternType

    if not name:
        raise UsageError(f"a {kind.name} has a name; '*' is all of them")
    if name == "*" and pattern is PatternType.PREFIXED:
        raise UsageError(
            "'*' is every resource without --prefixed; with it, those whose names begin with a star"
        )
    return AclBinding(
        kind,
        name,
        pattern or PatternType.LITERAL,
        principal,
        host,
        operation,
        permission or AclPermissionType.ALLOW,
    )


def _everything() -> AclBindingFilter:
    from ottla.security.acls import AclBindingFilter

    return AclBindingFilter()


def _filter(args: argparse.Namespace) -> AclBindingFilter:
    """Which rules are meant: those that say just this name, or with --matching all that count for it."""
    from ottla.security.acls import AclBindingFilter, AclPermissionType, PatternType

    resources = list(_resources(args))
    if len(resources) > 1:
        raise UsageError("name one resource at a time")
    kind, name = resources[0] if resources else (None, None)
    pattern = PatternType.ANY
    if name is not None:
        pattern = PatternType.PREFIXED if args.prefixed else PatternType.LITERAL
        if getattr(args, "matching", False):
            pattern = PatternType.MATCH
    elif args.prefixed:
        pattern = PatternType.PREFIXED
    filled = AclBindingFilter(pattern_type=pattern, name=name)
    if kind is not None:
        filled = filled._replace(resource_type=kind)
    if args.user:
        filled = filled._replace(principal=_principal(_only(args.user, "--user")))
    if args.host:
        filled = filled._replace(host=_host(_only(args.host, "--host")))
    if args.op:
        filled = filled._replace(operation=_operation(_only(args.op, "--op")))
    if args.deny or args.allow:
        filled = filled._replace(permission=AclPermissionType.DENY if args.deny else AclPermissionType.ALLOW)
    return filled


def _only(given: list[str], what: str) -> str:
    if len(given) > 1:
        raise UsageError(f"{what} can be given once here")
    return given[0]


def _resources(args: argparse.Namespace) -> Iterator[tuple[ResourceType, str]]:
    from ottla.security.acls import CLUSTER_NAME, ResourceType

    for kind, names in (
        (ResourceType.TOPIC, args.topic),
        (ResourceType.GROUP, args.group),
        (ResourceType.TRANSACTIONAL_ID, args.transactional_id),
        (ResourceType.DELEGATION_TOKEN, args.delegation_token),
        (ResourceType.USER, [_principal(name) if name != "*" else name for name in args.token_user]),
    ):
        yield from ((kind, name) for name in names)
    if args.cluster:
        yield ResourceType.CLUSTER, CLUSTER_NAME


def _one_resource(args: argparse.Namespace) -> tuple[ResourceType, str]:
    resources = list(_resources(args))
    if len(resources) != 1:
        raise UsageError("on what? One of --topic, --group, --transactional-id, --cluster, ...")
    return resources[0]


def _operation(word: str) -> AclOperation:
    from ottla.security.acls import AclOperation

    return AclOperation[word.replace("-", "_").upper()]


def _word(text: str) -> str:
    """An operation as people write it: cluster-action, ClusterAction and CLUSTER_ACTION are the same."""
    import re

    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", text).replace("-", "_").lower()


def _principal(text: str) -> str:
    """A user may be named without saying that it is one."""
    if not text:
        raise UsageError("a user has a name")
    return text if ":" in text else f"User:{text}"


def _host(text: str) -> str:
    """An address as brokers spell those of their clients, as text: a rule for ::1 would be about nobody."""
    from ottla.security.principal import address_bytes, host_address, is_address

    # '*' is none, and what has a scope is spelled in more than one way.
    return host_address(address_bytes(text)) if is_address(text) and "%" not in text else text


def _row(binding: AclBinding) -> dict[str, object]:
    return {
        "principal": binding.principal,
        "permission": binding.permission.name,
        "operation": binding.operation.name,
        "resource": binding.resource_type.name,
        "name": binding.name,
        "pattern": binding.pattern_type.name,
        "host": binding.host,
    }


_FLAGS = {
    "TOPIC": "--topic",
    "GROUP": "--group",
    "TRANSACTIONAL_ID": "--transactional-id",
    "DELEGATION_TOKEN": "--delegation-token",
    "USER": "--token-user",
}


def _command(binding: AclBinding) -> str:
    """The command that adds a rule."""
    flag = _FLAGS.get(binding.resource_type.name)
    words = ["ottla", "acl", "add", "--user", binding.principal.removeprefix("User:")]
    words += ["--op", binding.operation.name.lower()]
    words += ["--cluster"] if flag is None else [flag, binding.name]
    if binding.host != "*":
        words += ["--host", binding.host]
    return shlex.join(words)


# ---- the words ----------------------------------------------------------------------------------------------


_RESOURCES = (
    argument(
        "--topic",
        action="append",
        default=[],
        metavar="NAME",
        complete="topic",
        help="a topic; '*': every topic",
    ),
    argument("--group", action="append", default=[], metavar="NAME", complete="group", help="a group"),
    argument(
        "--transactional-id", action="append", default=[], metavar="ID", help="a producer's transactional id"
    ),
    switch("--cluster", help="the cluster itself"),
    argument("--delegation-token", action="append", default=[], metavar="ID", help="a delegation token"),
    argument(
        "--token-user",
        action="append",
        default=[],
        metavar="USER",
        help="whose tokens may be created or described (create_tokens, describe_tokens)",
    ),
)
_PREFIXED = switch("--prefixed", help="the names are beginnings of names")
_USERS = argument(
    "-u",
    "--user",
    action="append",
    default=[],
    metavar="USER",
    help="a user, or any principal as Type:name; '*': everybody",
)
_HOSTS = argument("--host", action="append", default=[], metavar="ADDRESS", help="an address; any without it")
_OPS = argument(
    "--op",
    action="append",
    default=[],
    type=_word,
    choices=_OPERATIONS,
    metavar="OPERATION",
    help=", ".join(_OPERATIONS),
)
_DENY = switch("--deny", help="rules that deny")
_ALLOW = switch("--allow", help="rules that allow")
_DRY_RUN = switch("--dry-run", help="only show which rules")

COMMAND = Command(
    "acl",
    "list, add, remove and explain access rules (ACLs)",
    commands=(
        Command(
            "list",
            "list the rules, or those of somebody or about something",
            *_RESOURCES,
            _PREFIXED,
            switch("--matching", help="also prefixed and wildcard rules that count for this name"),
            _USERS,
            _HOSTS,
            _OPS,
            _DENY,
            _ALLOW,
            *CLUSTER,
            OUTPUT,
            run=_list,
        ),
        Command(
            "add",
            "add rules: operations on resources, or what a kind of client needs",
            _USERS,
            switch("--producer", help="to write to --topic, with --transactional-id if one is given"),
            switch("--consumer", help="to read --topic as a member of --group"),
            switch(
                "--streams",
                help="Kafka Streams: --group is the application id, --topic its inputs and outputs",
            ),
            switch("--spark", help="Spark: to read and write --topic"),
            _OPS,
            *_RESOURCES,
            _PREFIXED,
            _HOSTS,
            _DENY,
            _DRY_RUN,
            *CLUSTER,
            OUTPUT,
            run=_add,
        ),
        Command(
            "remove",
            "remove the rules that are just these",
            *_RESOURCES,
            _PREFIXED,
            _USERS,
            _HOSTS,
            _OPS,
            _DENY,
            _ALLOW,
            switch("--all", help="every rule there is"),
            _DRY_RUN,
            *CLUSTER,
            OUTPUT,
            run=_remove,
        ),
        Command(
            "explain",
            "say whether somebody may do something, and by which rule or for want of which",
            argument("-u", "--user", required=True, metavar="USER", help="who asks: a user, or Type:name"),
            argument(
                "--op",
                required=True,
                type=_word,
                choices=_OPERATIONS[1:],
                metavar="OPERATION",
                help=", ".join(_OPERATIONS[1:]),
            ),
            *_RESOURCES,
            argument("--host", metavar="ADDRESS", help="from where (default: an address that no rule names)"),
            *CLUSTER,
            OUTPUT,
            run=_explain,
        ),
    ),
)
