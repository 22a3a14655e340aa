"""`ottla topic`: list, describe, create, alter, trim and delete topics.

`trim` deletes the records below an offset (DeleteRecords): it prints what would go, and only --execute deletes it.
Owned by the process that runs one command.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ottla.cli.args import OUTPUT, CliError, Command, UsageError, argument, pairs, switch
from ottla.cli.client import CLUSTER, admin, described, report
from ottla.cli.output import counted, emit, emit_json, say
from ottla.cli.selection import topic_partitions

if TYPE_CHECKING:
    import argparse

    from ottla.client.blocking import Admin
    from ottla.model.ids import TopicPartition

    Offsets = dict[TopicPartition, int]
    from collections.abc import Mapping

    from ottla.client.admin.types import ConfigEntry, TopicDescription
    from ottla.model.errors import KafkaError


_COLUMNS = ("topic", "partition", "begin", "end", "new_begin", "records")
_TOPIC_COLUMNS = ("topic", "topic_id", "partitions", "replication_factor", "configs")
_PARTITION_COLUMNS = (
    "topic",
    "partition",
    "leader",
    "leader_epoch",
    "replicas",
    "isr",
    "elr",
    "last_known_elr",
    "offline",
    "begin",
    "end",
)


def trim(args: argparse.Namespace) -> int:
    from ottla.client.offsets import EARLIEST, LATEST
    from ottla.model.errors import KafkaError

    if (args.before_offset is None) is not args.all:
        raise UsageError("up to where? give --before-offset N or --all")
    if args.before_offset is not None and args.before_offset < 0:
        raise UsageError(f"--before-offset {args.before_offset}: an offset is not negative")
    with admin(args) as client:
        partitions = topic_partitions(client, args.topic)
        begin, end = (_partition_offsets(client, partitions, which) for which in (EARLIEST, LATEST))
        plan = end if args.all else dict.fromkeys(partitions, args.before_offset)
        for tp, offset in plan.items():
            if offset > end[tp]:
                raise CliError(
                    f"{tp.topic}:{tp.partition} ends at {end[tp]}, before {offset}; TOPIC:P,P names partitions"
                )
        # Where the beginning is past it already, nothing is to be done.
        due = {tp: offset for tp, offset in plan.items() if offset > begin[tp]}
        results = client.delete_records(due) if args.execute and due else {}
    errors = [result for result in results.values() if isinstance(result, KafkaError)]
    new = {tp: result for tp, result in results.items() if not isinstance(result, KafkaError)}
    shown = due | new if not args.execute else new
    rows = [
        {
            "topic": tp.topic,
            "partition": tp.partition,
            "begin": begin[tp],
            "end": end[tp],
            "new_begin": shown.get(tp, begin[tp]),
            # Offsets, strictly: transactions' markers and what compaction took count too.
            "records": shown.get(tp, begin[tp]) - begin[tp],
        }
        for tp in partitions
    ]
    emit(rows, _COLUMNS, args.output)
    if not args.execute:
        say("nothing was deleted: this is what --execute would do")
    return report(errors, args)


def _partition_offsets(client: Admin, partitions: list[TopicPartition], which: int) -> Offsets:
    return {tp: found.offset for tp, found in client.list_offsets(dict.fromkeys(partitions, which)).items()}


def _list(args: argparse.Namespace) -> int:
    from ottla.model.ids import uuid_to_str

    with admin(args) as client:
        rows = [
            {
                "topic": topic.name,
                "topic_id": uuid_to_str(topic.topic_id),
                "internal": topic.is_internal,
                "partitions": topic.partition_count,
                "replication_factor": topic.replication_factor,
            }
            for topic in client.list_topics()
            if args.internal or not topic.is_internal
        ]
    emit(rows, ("topic", "partitions", "replication_factor"), args.output)
    return 0


def _describe(args: argparse.Namespace) -> int:
    from ottla.model.errors import KafkaError

    with admin(args) as client:
        names = args.topic or [topic.name for topic in client.list_topics() if not topic.is_internal]
        found = client.describe_topics(names)
        errors = [topic for topic in found.values() if isinstance(topic, KafkaError)]
        topics = [topic for topic in found.values() if not isinstance(topic, KafkaError)]
        documents = [_document(client, topic) for topic in sorted(topics)]
    if args.output == "json":
        emit_json(documents)
    elif documents:
        _print_tables(documents)
    return report(errors, args)


def _document(client: Admin, topic: TopicDescription) -> dict[str, Any]:
    from ottla.client.admin.types import ConfigResource, ResourceType
    from ottla.model.ids import uuid_to_str

    resource = ConfigResource(ResourceType.TOPIC, topic.name)
    entries = client.describe_configs([resource])[resource]
    begin, end = _offsets(client, topic)
    return {
        "topic": topic.name,
        "topic_id": uuid_to_str(topic.topic_id),
        "internal": topic.is_internal,
        "replication_factor": max((len(p.replicas) for p in topic.partitions.values()), default=0),
        "configs": _own_configs(entries) if isinstance(entries, dict) else {},
        "partitions": [
            {
                "partition": number,
                "leader": info.leader if info.leader >= 0 else None,
                "leader_epoch": info.leader_epoch,
                "replicas": list(info.replicas),
                "isr": list(info.isr),
                "elr": list(info.elr),
                "last_known_elr": list(info.last_known_elr),
                "offline": list(info.offline),
                "begin": begin.get(number),
                "end": end.get(number),
            }
            for number, info in topic.partitions.items()
        ],
    }


def _own_configs(entries: Mapping[str, ConfigEntry]) -> dict[str, str | None]:
    """What was set on the topic itself."""
    from ottla.client.admin.types import ConfigSource

    own = ConfigSource.DYNAMIC_TOPIC_CONFIG
    return {name: entry.value for name, entry in sorted(entries.items()) if entry.source is own}


def _offsets(client: Admin, topic: TopicDescription) -> tuple[dict[int, int], dict[int, int]]:
    """First and next offset of the partitions that have a leader."""
    from ottla.client.offsets import EARLIEST, LATEST
    from ottla.model.ids import TopicPartition

    led = [TopicPartition(topic.name, p) for p, info in topic.partitions.items() if info.leader >= 0]
    found = [client.list_offsets(dict.fromkeys(led, which)) for which in (EARLIEST, LATEST)]
    begin, end = [{tp.partition: result.offset for tp, result in side.items()} for side in found]
    return begin, end


def _print_tables(documents: list[dict[str, Any]]) -> None:
    topics = [
        {
            **document,
            "partitions": len(document["partitions"]),
            "configs": [f"{name}={value}" for name, value in document["configs"].items()] or None,
        }
        for document in documents
    ]
    partitions = [
        {"topic": document["topic"], **{k: v if v != [] else None for k, v in partition.items()}}
        for document in documents
        for partition in document["partitions"]
    ]
    emit(topics, _TOPIC_COLUMNS, "table")
    print()
    # Where the minimum is in sync nobody else is eligible.
    empty = {each for each in ("elr", "last_known_elr") if not any(row[each] for row in partitions)}
    emit(partitions, tuple(each for each in _PARTITION_COLUMNS if each not in empty), "table")


def _create(args: argparse.Namespace) -> int:
    from ottla.client.admin.types import NewTopic
    from ottla.model.errors import ErrorCode, KafkaError

    configs: dict[str, str | None] = dict(pairs(args.config, "--config"))
    topics = [NewTopic(name, args.partitions, args.replication_factor, configs) for name in args.topic]
    with admin(args) as client:
        results = client.create_topics(topics, validate_only=args.validate_only)
    errors = []
    for name, result in results.items():
        if not isinstance(result, KafkaError):
            verb = "could be created" if args.validate_only else "created"
            partitions = counted(result.num_partitions, "partition")
            say(f"{name} {verb} ({partitions}, {counted(result.replication_factor, 'replica')})")
        elif not (args.if_not_exists and result.code is ErrorCode.TOPIC_ALREADY_EXISTS):
            errors.append(result)
    return report(errors, args)


def _alter(args: argparse.Namespace) -> int:
    from ottla.client.admin.types import ConfigChange, ConfigOperation, ConfigResource, ResourceType

    changes = [ConfigChange(name, value) for name, value in pairs(args.config, "--config")]
    changes += [ConfigChange(name, None, ConfigOperation.DELETE) for name in args.unset]
    if args.partitions is None and not changes:
        raise UsageError("nothing to alter: give --partitions, --config or --unset")
    errors: list[KafkaError | None] = []
    with admin(args) as client:
        if args.partitions is not None:
            grown = client.create_partitions(dict.fromkeys(args.topic, args.partitions))
            errors += _report_each(grown, f"has {counted(args.partitions, 'partition')} now")
        if changes:
            resources = [ConfigResource(ResourceType.TOPIC, name) for name in args.topic]
            changed = client.incremental_alter_configs(dict.fromkeys(resources, changes))
            errors += _report_each(
                {each.name: error for each, error in changed.items()}, described(changes), ": "
            )
    return report(errors, args)


def _report_each(
    results: Mapping[str, KafkaError | None], what: str, between: str = " "
) -> list[KafkaError | None]:
    """Say of each topic that it was done; the errors of the others."""
    for name, error in results.items():
        if error is None:
            say(f"{name}{between}{what}")
    return list(results.values())


def _delete(args: argparse.Namespace) -> int:
    from ottla.model.errors import ErrorCode

    with admin(args) as client:
        results = client.delete_topics(args.topic)
    errors = []
    for name, error in results.items():
        if error is None:
            say(f"{name} deleted")
        elif not (args.if_exists and error.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION):
            errors.append(error)
    return report(errors, args)


_NAMES = argument("topic", nargs="+", metavar="TOPIC", complete="topic", help="its name")
_CONFIG = argument(
    "--config",
    action="append",
    default=[],
    metavar="KEY=VALUE",
    complete="topic-key",
    help="a setting of the topic (may be given many times)",
)

COMMAND = Command(
    "topic",
    "list, describe, create, alter, trim and delete topics",
    commands=(
        Command(
            "list",
            "list the topics",
            switch("--internal", help="with the internal ones"),
            *CLUSTER,
            OUTPUT,
            run=_list,
        ),
        Command(
            "describe",
            "show partitions, leaders, in-sync replicas, offsets and settings of topics",
            argument("topic", nargs="*", metavar="TOPIC", complete="topic", help="its name (default: all)"),
            *CLUSTER,
            OUTPUT,
            run=_describe,
        ),
        Command(
            "create",
            "create topics",
            _NAMES,
            argument(
                "-p",
                "--partitions",
                type=int,
                default=-1,
                metavar="N",
                help="how many (default: the broker's)",
            ),
            argument(
                "-r",
                "--replication-factor",
                type=int,
                default=-1,
                metavar="N",
                help="copies of each partition (default: the broker's)",
            ),
            _CONFIG,
            switch("--if-not-exists", help="no error if it is there already"),
            switch("--validate-only", help="only say whether it could be created"),
            *CLUSTER,
            run=_create,
        ),
        Command(
            "alter",
            "give topics more partitions or other settings",
            _NAMES,
            argument("-p", "--partitions", type=int, default=None, metavar="N", help="how many in all"),
            _CONFIG,
            argument(
                "--unset",
                action="append",
                default=[],
                metavar="KEY",
                complete="topic-key",
                help="a setting to take back (may be given many times)",
            ),
            *CLUSTER,
            run=_alter,
        ),
        Command(
            "trim",
            "forget the records before an offset (only shown, unless --execute is given)",
            argument("topic", nargs="+", metavar="TOPIC[:P,P]", help="the topic, or some of its partitions"),
            argument("--before-offset", type=int, metavar="N", help="keep what is at this offset and after"),
            switch("--all", help="keep nothing of what is there now"),
            switch("--execute", help="do it: what is gone does not come back"),
            *CLUSTER,
            OUTPUT,
            run=trim,
            details="""examples:
  ottla topic trim orders:0 --before-offset 4711      what would happen
  ottla topic trim orders --all --execute             an empty topic, whose offsets go on where they were""",
        ),
        Command(
            "delete",
            "delete topics and all that is in them",
            _NAMES,
            switch("--if-exists", help="no error if there is none"),
            *CLUSTER,
            run=_delete,
        ),
    ),
)
