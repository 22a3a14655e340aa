"""`ottla log dump`: what is in the files of a log, in the manner of kafka-dump-log.

The lines are those of Kafka's tool, so that eyes and scripts that know them can go on; `-o json` prints one JSON
object a line instead. Only reads. Exit code 1 if something in a file is wrong.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ottla.cli.args import (
    EXIT_FAILED,
    EXIT_OK,
    Argument,
    CliError,
    Command,
    UsageError,
    argument,
    switch,
    unknown,
)
from ottla.cli.log_dirs import DIRS
from ottla.cli.output import say

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable, Mapping

    from ottla.cli.dump_decoders import Decoder

BOOTSTRAP_CHECKPOINT = "bootstrap.checkpoint"
DECODERS = ("StringDecoder", "IntegerDecoder", "LongDecoder", "DefaultDecoder")


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
        from ottla.cli.dump_indexes import transaction_fields

        return _print_fields(transaction_fields(file), args)
    if file.suffix == ".snapshot":
        from ottla.cli.dump_indexes import producer_fields

        return _print_fields(producer_fields(file), args)
    say(f"Ignoring unknown file {file}")
    return True


def _dump_log(file: Path, args: argparse.Namespace) -> bool:
    from ottla.cli.dump_batches import BatchPrinter, mapped, walk

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
        _tell(f"Found {left} invalid bytes at the end of {file.name}", args)
    if trouble:
        say(f"{file}: {trouble}")
    # A segment begins anywhere, and compaction leaves gaps: Kafka's tool tells of them, but they are no damage.
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
    from ottla.cli import dump_decoders

    if args.decoder is None:
        classes = [args.key_decoder_class or DECODERS[0], args.value_decoder_class or DECODERS[0]]
        for name in classes:
            if name.rpartition(".")[2] not in DECODERS:
                raise unknown("decoder class", name, DECODERS, "ottla log dump --help")
        return dump_decoders.plain(*classes)
    if args.decoder == "cluster-metadata":
        return dump_decoders.cluster_metadata
    return {
        "offsets": dump_decoders.offsets,
        "transactions": dump_decoders.transactions,
        "share-state": dump_decoders.share_state,
    }[args.decoder]()


def _dump_offset_index(file: Path, args: argparse.Namespace) -> bool:
    from ottla.cli.dump_indexes import OFFSET_ENTRY, OffsetIndexCheck

    _number(file.stem, file)
    if file.stat().st_size < OFFSET_ENTRY.size:
        _tell(f"{file} is empty.", args)
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
    from ottla.cli.dump_indexes import TIME_ENTRY, TimeIndexCheck

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
    from ottla.cli.dump_indexes import sanity_problem

    problem = sanity_problem(file, entry_size)
    if problem:
        say(f"{file}: {problem}; a broker would rebuild it")
        return True
    _tell(f"{file} passed sanity check.", args)
    return False


def _tell(message: str, args: argparse.Namespace) -> None:
    """A line of kafka-dump-log's that is no data: between lines of JSON it would be in the way."""
    say(message) if args.output == "json" else print(message)


def _print_fields(rows: Iterable[Mapping[str, int | None]], args: argparse.Namespace) -> bool:
    for row in rows:
        _print_pairs(row, args)
    return False


def _print_pairs(pairs: Mapping[str, int | None], args: argparse.Namespace) -> None:
    if args.output == "json":
        from ottla.cli.message_json import compact

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
