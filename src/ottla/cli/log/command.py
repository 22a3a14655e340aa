"""`ottla log`: what is in the files of a log (dump), and how large the logs of brokers are (dirs).

`dump` prints the lines of kafka-dump-log, so that scripts that know them can go on; `-o json` prints one JSON object
a line instead. It only reads, and exits with 1 if something in a file is wrong. `dirs` asks the brokers
(DescribeLogDirs), so it works from anywhere. Owned by the process that runs one command.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ottla.cli.args import (
    EXIT_FAILED,
    EXIT_OK,
    OUTPUT,
    Argument,
    CliError,
    Command,
    UsageError,
    argument,
    switch,
    unknown,
)
from ottla.cli.client import CLUSTER, admin, report
from ottla.cli.output import emit, emit_json, say, size_text

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable, Mapping, Sequence
    from typing import Any

    from ottla.cli.log.decoders import Decoder
    from ottla.client.admin.types import LogDirDescription
    from ottla.client.blocking import Admin


_DIRECTORY_COLUMNS = ("broker", "directory", "state", "partitions", "size", "total", "free")
_TOPIC_COLUMNS = ("topic", "partitions", "replicas", "size")
_PARTITION_COLUMNS = ("topic", "partition", "broker", "directory", "size", "lag", "future")
BOOTSTRAP_CHECKPOINT = "bootstrap.checkpoint"
DECODERS = ("StringDecoder", "IntegerDecoder", "LongDecoder", "DefaultDecoder")


def _dirs(args: argparse.Namespace) -> int:
    from ottla.model.errors import KafkaError

    with admin(args) as client:
        found = client.describe_log_dirs(_brokers(client, args.broker))
    errors = [answer for answer in found.values() if isinstance(answer, KafkaError)]
    directories = [
        (broker, directory)
        for broker, answer in found.items()
        if not isinstance(answer, KafkaError)
        for directory in answer
    ]
    errors += [directory.error for _, directory in directories if directory.error is not None]
    replicas = [row for broker, directory in directories for row in _replicas(broker, directory, args.topic)]
    documents = [_directory(broker, directory, replicas) for broker, directory in directories]
    if args.output == "json":
        emit_json([document | {"replicas": _of(document, replicas)} for document in documents])
        return report(errors)
    emit([_in_units(document) for document in documents], _DIRECTORY_COLUMNS, "table")
    print()
    if args.partitions:
        emit([_in_units(row) for row in replicas], _PARTITION_COLUMNS, "table")
    else:
        emit([_in_units(row) for row in _by_topic(replicas)], _TOPIC_COLUMNS, "table")
    return report(errors)


def _brokers(client: Admin, wanted: Sequence[int]) -> list[int]:
    """Those that were asked for; a request to one that is not there would wait for it to come."""
    known = [node.node_id for node in client.describe_cluster().nodes]
    for broker in wanted:
        if broker not in known:
            raise CliError(f"there is no broker {broker} in the cluster; it has {', '.join(map(str, known))}")
    return sorted(set(wanted)) or known


def _replicas(broker: int, directory: LogDirDescription, topics: Sequence[str]) -> list[dict[str, Any]]:
    return [
        {
            "topic": topic,
            "partition": number,
            "broker": broker,
            "directory": directory.path,
            "size_bytes": replica.size_bytes,
            "lag": replica.offset_lag,
            "future": replica.is_future,
        }
        for (topic, number), replica in sorted(directory.replicas.items())
        if not topics or topic in topics
    ]


def _of(document: dict[str, Any], replicas: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The replicas in one directory of one broker."""
    place = (document["broker"], document["directory"])
    return [row for row in replicas if (row["broker"], row["directory"]) == place]


def _directory(broker: int, directory: LogDirDescription, replicas: list[dict[str, Any]]) -> dict[str, Any]:
    document = {
        "broker": broker,
        "directory": directory.path,
        "state": "online" if directory.error is None else "offline",
        "total_bytes": directory.total_bytes if directory.total_bytes >= 0 else None,
        "free_bytes": directory.usable_bytes if directory.usable_bytes >= 0 else None,
    }
    here = _of(document, replicas)
    return document | {"partitions": len(here), "size_bytes": sum(row["size_bytes"] for row in here)}


def _by_topic(replicas: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The largest first, and all together last."""
    topics: dict[str, list[dict[str, Any]]] = {}
    for row in replicas:
        topics.setdefault(row["topic"], []).append(row)
    rows = [_sum(topic, found) for topic, found in topics.items()]
    rows.sort(key=lambda row: (-row["size_bytes"], row["topic"]))
    return [*rows, _sum("(all)", replicas)] if len(rows) > 1 else rows


def _sum(name: str, replicas: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "topic": name,
        "partitions": len({(row["topic"], row["partition"]) for row in replicas}),
        "replicas": len(replicas),
        "size_bytes": sum(row["size_bytes"] for row in replicas),
    }


def _in_units(row: dict[str, Any]) -> dict[str, Any]:
    """The same for people: size_bytes as size, in units."""
    sizes = {name.removesuffix("_bytes"): value for name, value in row.items() if name.endswith("_bytes")}
    return row | {name: None if value is None else size_text(value) for name, value in sizes.items()}


DIRS = Command(
    "dirs",
    "show the log directories of brokers, and how much each topic takes in them",
    argument("topic", nargs="*", metavar="TOPIC", complete="topic", help="only this topic (default: all)"),
    argument(
        "--broker",
        type=int,
        action="append",
        default=[],
        metavar="ID",
        help="only of this broker (may be repeated)",
    ),
    switch("--partitions", help="a line for each replica, not for each topic"),
    *CLUSTER,
    OUTPUT,
    run=_dirs,
    details="Sizes are those of the log segments; the indexes beside them are not counted, as in kafka-log-dirs.",
)


def _dump(args: argparse.Namespace) -> int:
    files = [Path(name) for name in args.paths]
    files += [Path(name.strip()) for name in (args.files or "").split(",") if name.strip()]
    if not files:
        raise UsageError("which files? see `ottla log dump --help`")
    wrong = False
    for file in files:
        if not file.is_file():
            raise CliError(f"{file}: there is no such file")
        wrong |= _dump_file(file, args)
    return EXIT_FAILED if wrong else EXIT_OK


def _dump_file(file: Path, args: argparse.Namespace) -> bool:
    """Dump one file; was anything wrong with it?"""
    if args.output != "json":
        print(f"Dumping {file}")
    if file.suffix in (".log", ".checkpoint"):
        return _dump_log(file, args)
    if file.suffix == ".index":
        return _dump_offset_index(file, args)
    if file.suffix == ".timeindex":
        return _dump_time_index(file, args)
    if file.suffix == ".txnindex":
        from ottla.cli.log.dump import transaction_fields

        return _print_fields(transaction_fields(file), args)
    if file.suffix == ".snapshot":
        from ottla.cli.log.dump import producer_fields

        return _print_fields(producer_fields(file), args)
    say(f"Ignoring unknown file {file}")
    return True


def _dump_log(file: Path, args: argparse.Namespace) -> bool:
    from ottla.cli.log.dump import BatchPrinter, mapped, walk

    contents = args.contents or any((args.decoder, args.key_decoder_class, args.value_decoder_class))
    printer = BatchPrinter(
        deep=args.deep or contents,
        contents=contents,
        metadata=not args.skip_record_metadata,
        decoder=_decoder(args),
    )
    as_json = args.output == "json"
    if not as_json:
        print(_heading(file))
    buf = mapped(file)
    trouble, end = None, 0
    for batch in walk(buf[: args.max_bytes] if args.max_bytes else buf):
        if isinstance(batch, str):
            trouble = batch
            continue
        (printer.batch_json if as_json else printer.batch)(batch)
        end = batch.end
    left = 0 if args.max_bytes else len(buf) - end
    return _report_log(file, args, left, trouble, printer.gaps) or printer.invalid > 0


def _report_log(
    file: Path, args: argparse.Namespace, left: int, trouble: str | None, gaps: list[tuple[int, int]]
) -> bool:
    if left > 0:
        _note(f"Found {left} invalid bytes at the end of {file.name}", args)
    if trouble:
        say(f"{file}: {trouble}")
    # A segment begins anywhere, and compaction leaves gaps: Kafka's tool reports them, but they are no damage.
    pairs = [f"  {before} is followed by {after}" for before, after in gaps]
    if pairs:
        say("\n".join([f"Non-consecutive offsets in {file.absolute()}", *pairs]))
    return left > 0 or trouble is not None


def _heading(file: Path) -> str:
    if file.suffix == ".log":
        return f"Log starting offset: {_number(file.stem, file)}"
    if file.name == BOOTSTRAP_CHECKPOINT:
        return "KRaft bootstrap snapshot"
    offset, _, epoch = file.stem.partition("-")
    return f"Snapshot end offset: {_number(offset, file)}, epoch: {_number(epoch, file)}"


def _number(text: str, file: Path) -> int:
    if not text.isdigit():
        raise CliError(f"{file}: its name does not begin with an offset, as the files of a log do")
    return int(text)


def _decoder(args: argparse.Namespace) -> Decoder:
    from ottla.cli.log import decoders

    if args.decoder is None:
        classes = [args.key_decoder_class or DECODERS[0], args.value_decoder_class or DECODERS[0]]
        for name in classes:
            if name.rpartition(".")[2] not in DECODERS:
                raise unknown("decoder class", name, DECODERS, "ottla log dump --help")
        return decoders.plain(*classes)
    if args.decoder == "cluster-metadata":
        return decoders.cluster_metadata
    return {
        "offsets": decoders.offsets,
        "transactions": decoders.transactions,
        "share-state": decoders.share_state,
    }[args.decoder]()


def _dump_offset_index(file: Path, args: argparse.Namespace) -> bool:
    from ottla.cli.log.dump import OFFSET_ENTRY, OffsetIndexCheck

    _number(file.stem, file)
    if file.stat().st_size < OFFSET_ENTRY.size:
        _note(f"{file} is empty.", args)
        return False
    if args.index_sanity_check:
        return _sanity(file, OFFSET_ENTRY.size, args)
    check = OffsetIndexCheck(file)
    for offset, position in check.entries():
        if not args.verify_index_only:
            _print_pairs({"offset": offset, "position": position}, args)
    if check.mismatches:
        pairs = sorted(check.mismatches, reverse=True)
        lines = [f"  Index offset: {index}, log offset: {log}" for index, log in pairs]
        say("\n".join([f"Mismatches in :{file.absolute()}", *lines]))
    return bool(check.mismatches)


def _dump_time_index(file: Path, args: argparse.Namespace) -> bool:
    from ottla.cli.log.dump import TIME_ENTRY, TimeIndexCheck

    _number(file.stem, file)
    if args.index_sanity_check:
        return _sanity(file, TIME_ENTRY.size, args)
    check = TimeIndexCheck(file)
    for timestamp, offset in check.entries():
        if not args.verify_index_only:
            _print_pairs({"timestamp": timestamp, "offset": offset}, args)
    complaints = [
        ("Found timestamp mismatch in :", "  Index timestamp: {}, log timestamp: {}", check.mismatches),
        (
            "Found out of order timestamp in :",
            "  Index timestamp: {}, Previously indexed timestamp: {}",
            check.out_of_order,
        ),
        (
            "The following indexed offsets are not found in :",
            "Indexed offset: {}, found log offset: {}",
            check.not_found,
        ),
    ]
    for heading, line, pairs in complaints:
        if pairs:
            say("\n".join([f"{heading}{file.absolute()}", *(line.format(*pair) for pair in pairs)]))
    return any(pairs for _, _, pairs in complaints)


def _sanity(file: Path, entry_size: int, args: argparse.Namespace) -> bool:
    from ottla.cli.log.dump import sanity_problem

    problem = sanity_problem(file, entry_size)
    if problem:
        say(f"{file}: {problem}; a broker would rebuild it")
        return True
    _note(f"{file} passed sanity check.", args)
    return False


def _note(message: str, args: argparse.Namespace) -> None:
    """A line of kafka-dump-log's that is no data: between lines of JSON it would be in the way."""
    say(message) if args.output == "json" else print(message)


def _print_fields(rows: Iterable[Mapping[str, int | None]], args: argparse.Namespace) -> bool:
    for row in rows:
        _print_pairs(row, args)
    return False


def _print_pairs(pairs: Mapping[str, int | None], args: argparse.Namespace) -> None:
    if args.output == "json":
        from ottla.cli.log.decoders import compact

        print(compact(pairs))
    else:
        print(" ".join(f"{name}: {_java(name, value)}" for name, value in pairs.items()))


def _java(name: str, value: int | None) -> str:
    """Kafka's tool prints one field as Java prints a value that may be absent."""
    if name != "currentTxnFirstOffset":
        return str(value)
    return "OptionalLong.empty" if value is None else f"OptionalLong[{value}]"


def _decoder_class(what: str) -> Argument:
    choice = ", ".join(DECODERS)
    return argument(f"--{what}-decoder-class", metavar="CLASS", help=f"how to read a {what}: {choice}")


def _decoder_switch(flag: str, name: str, what: str) -> Argument:
    return argument(
        flag, dest="decoder", action="store_const", const=name, help=f"read the records as {what}"
    )


DUMP = Command(
    "dump",
    "print the batches, records and index entries of log files",
    argument(
        "paths",
        nargs="*",
        metavar="FILE",
        complete="file",
        help=".log, .index, .timeindex, .txnindex, .snapshot or .checkpoint files",
    ),
    argument("--files", metavar="FILE,...", complete="file", help="the same, as kafka-dump-log takes them"),
    switch("--deep-iteration", dest="deep", help="print the records of each batch too"),
    switch("--print-data-log", dest="contents", help="print keys and values too"),
    switch("--skip-record-metadata", help="print of records only keys and values"),
    argument("--max-bytes", type=int, default=0, metavar="N", help="look only at so much of a log"),
    switch("--index-sanity-check", help="only say whether a broker would rebuild an index"),
    switch("--verify-index-only", help="check an index against its log without printing it"),
    _decoder_class("key"),
    _decoder_class("value"),
    _decoder_switch("--cluster-metadata-decoder", "cluster-metadata", "those of __cluster_metadata"),
    _decoder_switch("--offsets-decoder", "offsets", "those of __consumer_offsets"),
    _decoder_switch("--transaction-log-decoder", "transactions", "those of __transaction_state"),
    _decoder_switch("--share-group-state-decoder", "share-state", "those of __share_group_state"),
    argument(
        "-o",
        "--output",
        choices=("table", "json"),
        default="table",
        help="table: the lines of kafka-dump-log; json: one object a line (default: table)",
    ),
    run=_dump,
)

COMMAND = Command("log", "look into the files of a log, or at how large logs are", commands=(DUMP, DIRS))
