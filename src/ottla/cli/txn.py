"""`ottla txn`: list, describe and abort transactions; find those that hang.

Owned by the process that runs one command.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from ottla.cli.args import OUTPUT, CliError, Command, UsageError, argument, switch
from ottla.cli.client import CLUSTER, admin, report
from ottla.cli.output import counted, emit, emit_json, say
from ottla.cli.selection import by_topic, parse_duration_ms, topic_partitions, words

if TYPE_CHECKING:
    import argparse

    from ottla.client.admin.types import OpenTransaction
    from ottla.client.blocking import Admin
    from ottla.client.transaction.messages import TransactionDescription
    from ottla.model.ids import TopicPartition

_DESCRIBE_COLUMNS = (
    "transactional_id",
    "coordinator",
    "producer_id",
    "producer_epoch",
    "state",
    "timeout_ms",
    "open_seconds",
    "partitions",
)
_OPEN_COLUMNS = (
    "topic",
    "partition",
    "producer_id",
    "producer_epoch",
    "coordinator_epoch",
    "start_offset",
    "idle_seconds",
)
_PRODUCER_COLUMNS = (
    "producer_id",
    "producer_epoch",
    "coordinator_epoch",
    "last_sequence",
    "last_timestamp",
    "transaction_start_offset",
)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _list(args: argparse.Namespace) -> int:
    duration = None if args.min_duration is None else parse_duration_ms(args.min_duration)
    with admin(args) as client:
        found = client.list_transactions(
            states=words(args.state),
            producer_ids=args.producer_id,
            min_duration_ms=duration,
            id_pattern=args.pattern,
        )
    rows = [transaction._asdict() for transaction in found]
    emit(rows, ("transactional_id", "coordinator", "producer_id", "state"), args.output)
    return 0


def _describe(args: argparse.Namespace) -> int:
    from ottla.model.errors import KafkaError

    with admin(args) as client:
        found = client.describe_transactions(args.transactional_id)
    rows = [_document(state) for state in found.values() if not isinstance(state, KafkaError)]
    if args.output == "json":
        emit_json(rows)
    elif rows:
        for row in rows:
            held = row["partitions"]
            assert isinstance(held, dict)
            row["partitions"] = " ".join(f"{t}({','.join(map(str, p))})" for t, p in held.items()) or None
        emit(rows, _DESCRIBE_COLUMNS, "table")
    return report(error for error in found.values() if isinstance(error, KafkaError))


def _document(state: TransactionDescription) -> dict[str, object]:
    begun = state.start_time_ms
    return {
        **state._asdict(),
        "open_seconds": None if begun is None else round(max(_now_ms() - begun, 0) / 1000, 1),
        "partitions": by_topic(state.partitions),
    }


# -- abort ----------------------------------------------------------------------------------------------------


def _abort(args: argparse.Namespace) -> int:
    by_id = bool(args.transactional_id)
    if by_id == bool(args.topic):
        raise UsageError(
            "which transaction? name a transactional id, or give --topic and --partition with --start-offset"
        )
    with admin(args) as client:
        if by_id:
            return _terminate(client, args)
        transaction = _open_one(client, args)
        client.abort_open_transaction(transaction)
    say(f"the transaction of producer {transaction.producer_id} in {args.topic}-{args.partition} is aborted")
    return 0


def _terminate(client: Admin, args: argparse.Namespace) -> int:
    """Take the ids over: their coordinator aborts what is open. A wrong id must not be made by that."""
    from ottla.model.errors import KafkaError

    found = client.describe_transactions(args.transactional_id)
    errors = [error for error in found.values() if isinstance(error, KafkaError)]
    known = [name for name, state in found.items() if not isinstance(state, KafkaError)]
    for name, error in client.fence_producers(known).items():
        if error is None:
            say(f"{name}: what was open is aborted, its producer is fenced")
        else:
            errors.append(error)
    return report(errors)


def _open_one(client: Admin, args: argparse.Namespace) -> OpenTransaction:
    """The transaction the options name, as its partition's leader knows it."""
    from ottla.client.admin.types import OpenTransaction

    if args.partition is None:
        raise UsageError("--topic needs --partition")
    tp = topic_partitions(client, [f"{args.topic}:{args.partition}"])[0]
    if args.start_offset is not None:
        for transaction in client.open_transactions([tp]):
            if transaction.start_offset == args.start_offset:
                return transaction
        raise CliError(
            f"no open transaction starts at offset {args.start_offset} of {args.topic}-{args.partition}"
        )
    given = (args.producer_id, args.producer_epoch, args.coordinator_epoch)
    if None in given:
        raise UsageError("give --start-offset, or --producer-id, --producer-epoch and --coordinator-epoch")
    return OpenTransaction(tp, *given, -1, -1)


# -- hanging transactions, producers --------------------------------------------------------------------------


def _find_hanging(args: argparse.Namespace) -> int:
    from ottla.model.errors import KafkaError

    age_ms = parse_duration_ms(args.max_transaction_timeout)
    errors: list[KafkaError] = []
    with admin(args) as client:
        partitions = _partitions(client, args)
        hanging = client.find_hanging_transactions(partitions, min_age_ms=age_ms)
        for transaction in hanging if args.abort else ():
            try:
                client.abort_open_transaction(transaction)
            except KafkaError as error:
                errors.append(error)
    emit([_open_row(transaction) for transaction in hanging], _OPEN_COLUMNS, args.output)
    if args.abort and hanging:
        say(f"{counted(len(hanging) - len(errors), 'transaction')} aborted")
    elif hanging:
        say("abort them with `ottla txn find-hanging --abort`, or one by one with `ottla txn abort`")
    return report(errors)


def _partitions(client: Admin, args: argparse.Namespace) -> list[TopicPartition]:
    names = args.topic or [topic.name for topic in client.list_topics()]
    partitions = topic_partitions(client, names)
    if args.broker is None:
        return partitions
    from ottla.model.errors import KafkaError

    topics = client.describe_topics(sorted({tp.topic for tp in partitions}))
    held = []
    for tp in partitions:
        topic = topics[tp.topic]
        if not isinstance(topic, KafkaError) and args.broker in topic.partitions[tp.partition].replicas:
            held.append(tp)
    return held


def _open_row(transaction: OpenTransaction) -> dict[str, object]:
    idle_ms = max(_now_ms() - transaction.last_timestamp, 0)
    row = transaction._asdict()
    tp = row.pop("partition")
    return {"topic": tp.topic, "partition": tp.partition, **row, "idle_seconds": round(idle_ms / 1000, 1)}


def _producers(args: argparse.Namespace) -> int:
    from ottla.model.errors import KafkaError

    with admin(args) as client:
        tp = topic_partitions(client, [f"{args.topic}:{args.partition}"])[0]
        found = client.describe_producers([tp])[tp]
        if isinstance(found, KafkaError):
            raise found
    rows = []
    for producer in sorted(found):
        row = producer._asdict()
        start = row.pop("current_txn_start_offset")
        rows.append({**row, "transaction_start_offset": None if start < 0 else start})
    emit(rows, _PRODUCER_COLUMNS, args.output)
    return 0


_IDS = argument("transactional_id", nargs="+", metavar="ID", help="the transactional id")
_TOPIC = argument("-t", "--topic", required=True, metavar="TOPIC", complete="topic", help="the topic")
_PARTITION = argument("-p", "--partition", type=int, required=True, metavar="N", help="the partition")

COMMAND = Command(
    "txn",
    "list, describe and abort transactions; find those that hang",
    commands=(
        Command(
            "list",
            "list the transactional ids of every coordinator",
            argument(
                "--state",
                action="append",
                default=[],
                metavar="STATE",
                help="only those in this state, e.g. Ongoing (may be repeated)",
            ),
            argument(
                "--producer-id",
                action="append",
                type=int,
                default=[],
                metavar="N",
                help="only this producer's (may be repeated)",
            ),
            argument("--min-duration", metavar="DURATION", help="only those open for longer, e.g. 15m"),
            argument("--pattern", metavar="REGEX", help="only ids that match this expression (RE2)"),
            *CLUSTER,
            OUTPUT,
            run=_list,
        ),
        Command(
            "describe",
            "show the state, producer and partitions of transactional ids",
            _IDS,
            *CLUSTER,
            OUTPUT,
            run=_describe,
        ),
        Command(
            "abort",
            "abort what a transactional id has open, or a transaction that hangs in a partition",
            argument(
                "transactional_id",
                nargs="*",
                metavar="ID",
                help="the transactional id; its producer is fenced",
            ),
            argument("-t", "--topic", metavar="TOPIC", help="the topic of a transaction that hangs"),
            argument("-p", "--partition", type=int, metavar="N", help="its partition"),
            argument("--start-offset", type=int, metavar="N", help="where it begins"),
            argument("--producer-id", type=int, metavar="N", help="its producer, for brokers before 3.0"),
            argument("--producer-epoch", type=int, metavar="N", help="its producer's epoch, likewise"),
            argument("--coordinator-epoch", type=int, metavar="N", help="its coordinator's epoch, likewise"),
            *CLUSTER,
            run=_abort,
        ),
        Command(
            "find-hanging",
            "find transactions that no coordinator will ever end, and abort them",
            argument(
                "-t",
                "--topic",
                action="append",
                default=[],
                metavar="TOPIC[:P,P]",
                help="look only here (default: everywhere; may be repeated)",
            ),
            argument("--broker", type=int, metavar="ID", help="look only at partitions with a replica there"),
            argument(
                "--max-transaction-timeout",
                default="15m",
                metavar="DURATION",
                help="leave younger ones alone (default: 15m, the brokers' transaction.max.timeout.ms)",
            ),
            switch("--abort", help="abort all that are found"),
            *CLUSTER,
            OUTPUT,
            run=_find_hanging,
        ),
        Command(
            "producers",
            "show the producers a partition remembers",
            _TOPIC,
            _PARTITION,
            *CLUSTER,
            OUTPUT,
            run=_producers,
        ),
    ),
)
