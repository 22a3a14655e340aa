"""`ottla config`: show and change the configuration of topics, brokers, the cluster's default, loggers.

Owned by the process that runs one command.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ottla.cli.args import OUTPUT, CliError, Command, UsageError, argument, nearest, pairs, switch
from ottla.cli.client import CLUSTER, admin, described, report
from ottla.cli.output import emit, emit_json, say

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from ottla.client.admin.types import ConfigChange, ConfigEntry, ConfigResource
    from ottla.client.blocking import Admin

# What a user calls a resource; the cluster's default is the broker without a name.
_KINDS = {
    "topic": "TOPIC",
    "broker": "BROKER",
    "cluster": "BROKER",
    "logger": "BROKER_LOGGER",
    "group": "GROUP",
    "client-metrics": "CLIENT_METRICS",
}
_DETAILS = """resources:
  topic NAME           a topic
  broker ID            one broker
  cluster              the default of all brokers
  logger ID            the loggers of one broker, LOGGER=LEVEL
  group NAME           a group
  client-metrics NAME  a subscription to clients' metrics"""


def _resource(args: argparse.Namespace) -> tuple[ConfigResource, list[str]]:
    """The resource the first words name, and the words after it."""
    from ottla.client.admin.types import ConfigResource, ResourceType

    words: list[str] = args.resource
    kind = words[0]
    if kind not in _KINDS:
        guess = nearest(kind, list(_KINDS))
        hint = f"did you mean {guess!r}?" if guess else f"it is one of {', '.join(_KINDS)}"
        raise UsageError(f"unknown resource {kind!r}; {hint}")
    resource_type = ResourceType[_KINDS[kind]]
    if kind == "cluster":
        return ConfigResource(resource_type, ""), words[1:]
    if len(words) < 2:
        raise UsageError(f"{kind} needs its {'id' if kind in ('broker', 'logger') else 'name'}")
    name = words[1]
    if kind in ("broker", "logger"):
        if not name.isdecimal():
            raise UsageError(f"a broker's id is a number, not {name!r}")
        # What is set for 01 is nobody's: brokers look under 1.
        name = str(int(name))
    return ConfigResource(resource_type, name), words[2:]


def _entries(
    client: Admin, resource: ConfigResource, keys: Sequence[str] | None = None, **more: Any
) -> dict[str, ConfigEntry]:
    from ottla.model.errors import KafkaError

    _require_broker(client, resource)
    found = client.describe_configs([resource], keys=keys, **more)[resource]
    if isinstance(found, KafkaError):
        raise found
    return found


def _require_broker(client: Admin, resource: ConfigResource) -> None:
    """A request to a broker that is not there would wait for it to come."""
    from ottla.client.admin.types import ResourceType

    if resource.resource_type not in (ResourceType.BROKER, ResourceType.BROKER_LOGGER) or not resource.name:
        return
    ids = [node.node_id for node in client.describe_cluster().nodes]
    if int(resource.name) not in ids:
        raise CliError(
            f"there is no broker {resource.name} in the cluster; it has {', '.join(map(str, ids))}"
        )


def _is_set(entry: ConfigEntry, resource: ConfigResource) -> bool:
    """Was the value set for this very resource, rather than inherited?"""
    from ottla.client.admin.types import ConfigSource, ResourceType

    if resource.resource_type is ResourceType.BROKER:
        dynamic = (
            ConfigSource.DYNAMIC_BROKER_CONFIG
            if resource.name
            else ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG
        )
        return entry.source is dynamic
    return entry.source.name.startswith("DYNAMIC") and entry.source not in (
        ConfigSource.DYNAMIC_BROKER_CONFIG,
        ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG,
    )


def _get(args: argparse.Namespace) -> int:
    resource, keys = _resource(args)
    if not keys:
        raise UsageError("which key? `ottla config describe` shows all of them")
    with admin(args) as client:
        entries = _entries(client, resource, keys)
        missing = [key for key in keys if key not in entries]
        if missing:
            known = list(_entries(client, resource))
            guess = nearest(missing[0], known)
            raise CliError(f"no key {missing[0]!r}" + (f"; did you mean {guess!r}?" if guess else ""))
    if args.output == "json":
        emit_json({key: entries[key].value for key in keys})
    elif len(keys) == 1:
        print(entries[keys[0]].value if entries[keys[0]].value is not None else "")
    else:
        emit([{"name": key, "value": entries[key].value} for key in keys], ("name", "value"), "table")
    return 0


def _describe(args: argparse.Namespace) -> int:
    resource, keys = _resource(args)
    with admin(args) as client:
        entries = _entries(client, resource, keys or None, synonyms=True, documentation=args.output == "json")
    shown = sorted(entries.values(), key=lambda entry: entry.name)
    if not args.all and not keys:
        shown = [entry for entry in shown if _is_set(entry, resource)]
    emit([_row(entry) for entry in shown], ("name", "value", "source", "type", "read_only"), args.output)
    return 0


def _row(entry: ConfigEntry) -> dict[str, object]:
    return {
        "name": entry.name,
        "value": entry.value,
        "source": entry.source.name,
        "type": entry.config_type,
        "read_only": entry.read_only,
        "sensitive": entry.is_sensitive,
        "documentation": entry.documentation,
        "synonyms": [
            {"name": synonym.name, "value": synonym.value, "source": synonym.source.name}
            for synonym in entry.synonyms
        ],
    }


def _change(args: argparse.Namespace, resource: ConfigResource, changes: Sequence[ConfigChange]) -> int:
    with admin(args) as client:
        _require_broker(client, resource)
        results = client.incremental_alter_configs({resource: changes}, validate_only=args.validate_only)
    code = report(results.values(), args)
    if not code:
        only = " (only validated, not done)" if args.validate_only else ""
        say(f"{' '.join(filter(None, (args.resource[0], resource.name)))}: {described(changes)}{only}")
    return code


def _set(args: argparse.Namespace) -> int:
    from ottla.client.admin.types import ConfigChange, ConfigOperation

    resource, words = _resource(args)
    given = pairs(words, "config set")
    if args.from_file is not None:
        given += _from_file(args.from_file)
    if not given:
        raise UsageError("nothing to set: give KEY=VALUE")
    operation = ConfigOperation.SET
    if args.append:
        operation = ConfigOperation.APPEND
    elif args.subtract:
        operation = ConfigOperation.SUBTRACT
    code = _change(args, resource, [ConfigChange(*pair, operation) for pair in given])
    if not code and args.resource[0] in ("broker", "cluster"):
        _name_unknown([key for key, _ in given])
    return code


def _name_unknown(keys: Sequence[str]) -> None:
    """Brokers take what they do not know, since it may be a plugin's, and so would not say that it is misspelt."""
    from ottla.config.definitions import BROKER_QUOTA_KEYS
    from ottla.config.settings import is_known, unknown_key

    for key in keys:
        if not is_known(key) and key not in BROKER_QUOTA_KEYS:
            say(f"ottla: {unknown_key(key, 'of no effect, unless a plugin reads it')}")


def _from_file(file: str) -> list[tuple[str, str]]:
    """Where passwords belong: a command line can be read by everybody on the machine."""
    from ottla.config.properties import MAX_PROPERTIES_BYTES, decode_properties, parse_properties

    with open(file, "rb") as opened:
        data = opened.read(MAX_PROPERTIES_BYTES + 1)
    if len(data) > MAX_PROPERTIES_BYTES:
        raise UsageError(f"{file} is larger than {MAX_PROPERTIES_BYTES} bytes, so hardly a properties file")
    return [(name, value) for name, value, _ in parse_properties(decode_properties(data))]


def _unset(args: argparse.Namespace) -> int:
    from ottla.client.admin.types import ConfigChange, ConfigOperation

    resource, keys = _resource(args)
    if not keys:
        raise UsageError("nothing to unset: give one KEY or more")
    return _change(args, resource, [ConfigChange(key, None, ConfigOperation.DELETE) for key in keys])


def _words(rest: str) -> Any:
    return argument(
        "resource", nargs="+", metavar="RESOURCE", help=f"see below; then {rest}", complete="topic-key"
    )


_VALIDATE = switch("--validate-only", help="only say whether it could be changed")

COMMAND = Command(
    "config",
    "show and change the configuration of topics and brokers",
    commands=(
        Command(
            "describe",
            "show what is set on a resource, and where from",
            _words("keys, if not all"),
            switch("-a", "--all", help="also what is inherited or a default"),
            *CLUSTER,
            OUTPUT,
            run=_describe,
            details=_DETAILS,
        ),
        Command(
            "get",
            "print the value in force of a key (the bare value if it is one)",
            _words("one KEY or more"),
            *CLUSTER,
            OUTPUT,
            run=_get,
            details=_DETAILS,
        ),
        Command(
            "set",
            "set keys of a resource",
            _words("one KEY=VALUE or more"),
            argument(
                "--from-file",
                metavar="FILE",
                complete="file",
                help="KEY=VALUE lines of a properties file, too: for passwords, which are not for command lines",
            ),
            switch("--append", help="add to a list instead of replacing it"),
            switch("--subtract", help="take from a list instead of replacing it"),
            _VALIDATE,
            *CLUSTER,
            run=_set,
            details=_DETAILS,
        ),
        Command(
            "unset",
            "take back what was set, so that the default holds again",
            _words("one KEY or more"),
            _VALIDATE,
            *CLUSTER,
            run=_unset,
            details=_DETAILS,
        ),
    ),
)
