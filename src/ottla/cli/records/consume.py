"""`ottla consume`: print the records of a topic, in the manner of kcat.

`-o` is the offset here, as in kcat; the output is chosen with -f and -J. Owned by the process that runs one
command.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from ottla.cli.args import CliError, Command, UsageError, argument, switch
from ottla.cli.client import CLUSTER, MAX_POLL_RECORDS, POLL_MS, explained, settings
from ottla.cli.output import say
from ottla.cli.records.format import ENCODINGS, RAW, compile_filter
from ottla.cli.records.registry import REGISTRY, shown
from ottla.cli.selection import is_number, parse_moment_ms

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from ottla.cli.records.format import Printer
    from ottla.client.blocking import Consumer
    from ottla.client.consumer.core import Records
    from ottla.model.ids import TopicPartition


class Range:
    """Where to begin and where to end, as -o says it."""

    __slots__ = ("end_timestamp", "kind", "start")

    def __init__(self, words: Sequence[str]) -> None:
        self.kind, self.start = "beginning", 0
        self.end_timestamp: int | None = None
        for word in words:
            self._parse(word)

    def _parse(self, word: str) -> None:
        if word in ("beginning", "earliest"):
            self.kind = "beginning"
        elif word in ("end", "latest"):
            self.kind = "end"
        elif word.startswith("e@"):
            self.end_timestamp = _moment(word)
        elif word.startswith(("s@", "@")):
            self.kind, self.start = "timestamp", _moment(word)
        elif word.startswith("-"):
            self.kind, self.start = "tail", _number(word[1:], word)
        else:
            self.kind, self.start = "offset", _number(word, word)


def _number(text: str, word: str) -> int:
    if not is_number(text):
        raise UsageError(f"-o {word}: it is beginning, end, N, -N, @TIME, s@TIME or e@TIME")
    return int(text)


def _moment(word: str) -> int:
    try:
        # Below zero a lookup has other meanings: -1 is the end.
        return max(parse_moment_ms(word.partition("@")[2]), 0)
    except UsageError as error:
        raise UsageError(f"-o {word}: {error}") from None


class _Reader:
    """Reads partitions from their starts to their ends and prints what comes."""

    def __init__(self, args: argparse.Namespace, consumer: Consumer, printer: Printer, limits: Range) -> None:
        self._args = args
        self._consumer = consumer
        self._print = printer
        self._limits = limits
        self._keep = compile_filter(args.filter)
        self._shown = shown(args)
        self._out = sys.stdout.buffer
        self._ends: dict[TopicPartition, int] = {}
        self._left: int | None = args.count or None

    def prepare(self) -> None:
        """Assign the partitions and seek to where each begins; note where each ends."""
        from ottla.model.ids import TopicPartition

        consumer, args = self._consumer, self._args
        partitions = []
        for topic in args.topic:
            known = consumer.partitions_for(topic)
            wanted = args.partition or known
            if missing := sorted(set(wanted) - set(known)):
                raise CliError(f"topic {topic!r} has partitions {known[0]} to {known[-1]}, not {missing[0]}")
            partitions += [TopicPartition(topic, number) for number in wanted]
        starts, ends = self._starts(partitions), consumer.end_offsets(partitions)
        if args.exit or self._limits.end_timestamp is not None:
            self._ends = ends
        if self._limits.end_timestamp is not None:
            found = consumer.offsets_for_times(dict.fromkeys(partitions, self._limits.end_timestamp))
            self._ends.update({tp: result.offset for tp, result in found.items() if result is not None})
        consumer.assign([tp for tp in partitions if tp not in self._ends or starts[tp] < self._ends[tp]])
        for tp in consumer.assignment():
            consumer.seek(tp, starts[tp])
        for tp in set(partitions) - consumer.assignment():
            self._reached_end(tp, starts[tp])

    def _starts(self, partitions: list[TopicPartition]) -> dict[TopicPartition, int]:
        consumer, limits = self._consumer, self._limits
        if limits.kind == "offset":
            return dict.fromkeys(partitions, limits.start)
        begins = consumer.beginning_offsets(partitions)
        if limits.kind == "beginning":
            return begins
        ends = consumer.end_offsets(partitions)
        if limits.kind == "end":
            return ends
        if limits.kind == "tail":
            return {tp: max(begins[tp], ends[tp] - limits.start) for tp in partitions}
        found = consumer.offsets_for_times(dict.fromkeys(partitions, limits.start))
        return {tp: ends[tp] if (result := found[tp]) is None else result.offset for tp in partitions}

    def run(self) -> None:
        self.prepare()
        while self._consumer.assignment() and self._left != 0:
            records = self._consumer.poll(POLL_MS, self._batch())
            self._write(records)
            if self._ends:
                self._stop_where_done()

    def _batch(self) -> int:
        return MAX_POLL_RECORDS if self._left is None else min(self._left, MAX_POLL_RECORDS)

    def _write(self, records: Records) -> None:
        for tp, batch in records.items():
            end = self._ends.get(tp)
            wanted = batch if end is None else [record for record in batch if record.offset < end]
            failure = None
            if self._shown is not None:
                wanted, failure = self._shown(wanted)
            if self._keep is not None:
                wanted = list(filter(self._keep, wanted))
            if self._args.unbuffered:
                for record in wanted:
                    self._out.write(self._print(record))
                    self._out.flush()
            else:
                self._out.writelines(map(self._print, wanted))
            if self._left is not None:
                self._left = max(self._left - len(wanted), 0)
            if failure is not None:
                self._out.flush()
                raise failure
        self._out.flush()

    def _stop_where_done(self) -> None:
        consumer = self._consumer
        going = consumer.assignment()
        done = {tp: at for tp in going if (at := consumer.position(tp)) >= self._ends[tp]}
        if done:
            consumer.assign(going - done.keys())
        for tp, at in sorted(done.items()):
            self._reached_end(tp, at)

    def _reached_end(self, tp: TopicPartition, offset: int) -> None:
        if not self._args.quiet:
            say(f"% Reached end of topic {tp.topic} [{tp.partition}] at offset {offset}")


def _printer(args: argparse.Namespace) -> Printer:
    from ottla.cli.records.format import as_typed, compile_format, encoded, json_envelope
    from ottla.cli.records.produce import unescape

    printer: Printer
    if args.json:
        printer = json_envelope
    elif args.format is not None:
        printer = compile_format(args.format, as_typed(args.null))
    else:
        key = "" if args.key_delimiter is None else "%k" + _literal(unescape(args.key_delimiter))
        printer = compile_format(key + "%s" + _literal(unescape(args.delimiter)), as_typed(args.null))
    return encoded(printer, key=args.key_encoding, value=args.value_encoding)


def _literal(data: bytes) -> str:
    """Bytes as a format that stands for just them."""
    return "".join(f"\\x{byte:02x}" for byte in data)


def _run(args: argparse.Namespace) -> int:
    from ottla.client.blocking import Consumer
    from ottla.client.config import ConsumerConfig

    if args.count < 0:
        raise UsageError(f"-c {args.count}: it is how many records to print")
    if args.group is not None:
        from ottla.cli.records.consume_group import run

        return run(args, _printer(args))
    if args.instance_id is not None:
        raise UsageError("--instance-id needs --group")
    printer, limits = _printer(args), Range(args.offset)
    reset = "latest" if limits.kind == "end" else "earliest"
    fixed: dict[str, object] = {"allow_auto_create_topics": False, "auto_offset_reset": reset}
    with explained(args), Consumer(settings(args, ConsumerConfig, **fixed)) as consumer:
        _Reader(args, consumer, printer, limits).run()
    return 0


COMMAND = Command(
    "consume",
    "print the records of a topic",
    argument(
        "-t",
        "--topic",
        action="append",
        required=True,
        metavar="TOPIC",
        complete="topic",
        help="which (may be repeated)",
    ),
    argument(
        "-p",
        "--partition",
        action="append",
        type=int,
        default=[],
        metavar="N",
        help="only this partition (may be repeated)",
    ),
    argument(
        "-o",
        "--offset",
        action="append",
        default=[],
        metavar="OFFSET",
        help="beginning (default), end, N, -N (the last N), @TIME or s@TIME (from a time), "
        "e@TIME (until a time); a TIME is milliseconds, 2026-01-31T12:00:00, or 15m, 2h, 7d for so long ago",
    ),
    argument(
        "-g",
        "--group",
        metavar="GROUP",
        complete="group",
        help="read as a member of this group and commit what is printed (-t '^...': topics that match)",
    ),
    argument("--instance-id", metavar="ID", help="with --group: be a static member under this id"),
    argument(
        "--protocol",
        choices=("classic", "consumer"),
        default="classic",
        help="with --group: which protocol to speak (default: classic)",
    ),
    switch("-e", "--exit", help="stop at what is the end when it starts"),
    argument("-c", "--count", type=int, default=0, metavar="N", help="stop after so many records"),
    argument("-f", "--format", metavar="FORMAT", help="how to print a record, see below"),
    switch("-J", "--json", help="print records as JSON, one a line"),
    argument("-K", "--key-delimiter", metavar="DELIM", help="print the key too, and this after it"),
    argument(
        "-D",
        "--delimiter",
        default="\\n",
        metavar="DELIM",
        help="what to print after a record (default: \\n)",
    ),
    argument(
        "-Z",
        "--null",
        nargs="?",
        const="NULL",
        default="",
        metavar="TEXT",
        help="how to print a null key or value (-Z alone: NULL; without: nothing)",
    ),
    argument(
        "--filter",
        action="append",
        default=[],
        metavar="EXPRESSION",
        help="print only records that fit, see below (may be repeated: all must fit)",
    ),
    *(
        argument(
            f"--{side}-encoding",
            choices=ENCODINGS,
            default=RAW,
            help=f"how to print the {side}: as it is (raw, the default), hex or base64",
        )
        for side in ("key", "value")
    ),
    REGISTRY,
    switch("-u", "--unbuffered", help="write each record out at once"),
    switch("-q", "--quiet", help="do not say when an end is reached"),
    *CLUSTER,
    run=_run,
    details=r"""values of a schema registry (--registry): Avro, Protobuf and JSON with Confluent's frame are printed,
  and filtered, as JSON, by the schema that each was written with (Avro and Protobuf need the extra `spark`); a value
  that has no frame, or whose id the registry does not know, ends it with a line that says where
  --registry - takes schema.registry.url of the settings; basic.auth.user.info, bearer.auth.token and
  schema.registry.ssl.ca.location are settings too: put them into --command-config's file or a profile

formats (-f):
  %t topic  %p partition  %o offset  %T timestamp  %h headers  %% percent
  %k key    %K its length  %s value  %S its length (-1: null)  %R the same as 4 bytes
  \n \t \r \0 \\ \xHH

filters (--filter): a field, an operator, a value
  key  value  value.FIELD.FIELD (of JSON)  header.NAME  partition  offset  timestamp
  =  !=  <  <=  >  >=  ~ (a regular expression is found in it)  !~

examples:
  ottla consume -t greetings -e                       all there is, then stop
  ottla consume -t users -o -10 -f '%o %k=%s\n'       the last ten of each partition, then what comes
  ottla consume -t users -J -o @2026-01-31T12:00      from a time on, as JSON
  ottla consume -t users -o @15m -o e@5m             what came between 15 and 5 minutes ago
  ottla consume -t users --filter 'value.age >= 18' --filter 'key ~ ^a'
  ottla consume -t images --value-encoding hex -c 1   what is not text
  ottla consume -t orders --registry http://127.0.0.1:8081 --filter 'value.price > 5'
  ottla consume -t users -g readers                   what nobody else in the group reads, going on where it stopped""",
)
