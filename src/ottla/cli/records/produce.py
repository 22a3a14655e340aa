"""`ottla produce`: send records from files or standard input, in the manner of kcat.

Owned by the process that runs one command.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, BinaryIO

from ottla.cli.args import CliError, Command, UsageError, argument, switch
from ottla.cli.client import CLUSTER, explained, line, settings
from ottla.cli.output import counted, say
from ottla.cli.records.format import ENCODINGS, RAW, as_typed, decode
from ottla.cli.records.registry import REGISTRY, taken

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable, Iterator

    from ottla.client.blocking import Producer
    from ottla.client.producer.accumulator import Delivery

_CHUNK_BYTES = 64 * 1024
# A delimiter that never comes must not eat the memory.
_MAX_MESSAGE_BYTES = 256 * 1024 * 1024
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "0": "\0", "\\": "\\"}


def unescape(text: str) -> bytes:
    r"""A delimiter as typed: \n, \t, \r, \0, \\ and \xHH stand for what they say."""
    out = bytearray()
    position = 0
    while position < len(text):
        char, after = text[position], text[position + 1 : position + 2]
        if char == "\\" and after == "x" and _is_hex(text[position + 2 : position + 4]):
            out.append(int(text[position + 2 : position + 4], 16))
            position += 4
        elif char == "\\" and after in _ESCAPES:
            out += _ESCAPES[after].encode()
            position += 2
        else:
            out += as_typed(char)
            position += 1
    return bytes(out)


def _is_hex(text: str) -> bool:
    return len(text) == 2 and all(char in "0123456789abcdefABCDEF" for char in text)


def split_messages(stream: BinaryIO, delimiter: bytes) -> Iterator[bytes]:
    """The messages of a stream, as soon as each is complete; the last needs no delimiter."""
    pending = bytearray()
    # read1 returns what is there: a line typed by hand goes out before the next one comes.
    while chunk := stream.read1(_CHUNK_BYTES):  # type: ignore[attr-defined]
        # Only what is new is searched, so that one long message does not cost the square of its length.
        searched = max(len(pending) - len(delimiter) + 1, 0)
        pending += chunk
        start = 0
        while (end := pending.find(delimiter, max(start, searched))) >= 0:
            yield bytes(pending[start:end])
            start = end + len(delimiter)
        del pending[:start]
        if len(pending) > _MAX_MESSAGE_BYTES:
            raise CliError(f"no delimiter in {len(pending)} bytes of input: is -D right?")
    if pending:
        yield bytes(pending)


class _Sender:
    """Turns messages into records as the options say, and remembers what went wrong."""

    def __init__(self, args: argparse.Namespace, producer: Producer) -> None:
        self._producer = producer
        self._topic: str = args.topic
        self._partition: int | None = None if args.partition < 0 else args.partition
        self._key: bytes | None = None if args.key is None else as_typed(args.key)
        self._key_delimiter = unescape(args.key_delimiter) if args.key_delimiter else b""
        self._null_empty: bool = args.null
        self._key_encoding: str = args.key_encoding
        self._value_encoding: str = args.value_encoding
        self._headers = [_header(word) for word in args.header]
        self._taken = taken(args)
        self._tee = sys.stdout.buffer if args.tee else None
        self._delimiter = unescape(args.delimiter)
        self.sent = self.failed = 0
        self.first_error: str | None = None

    def send(self, message: bytes) -> None:
        key, value = self._key, message
        if self._key_delimiter and self._key_delimiter in message:
            key, value = message.split(self._key_delimiter, 1)
        empty = self._null_empty
        self._producer.send(
            self._topic,
            None if empty and not value else self._value(value),
            None if key is None or (empty and not key) else decode(key, self._key_encoding),
            partition=self._partition,
            headers=self._headers,
            on_delivery=self._delivered,
        )
        self.sent += 1
        if self._tee is not None:
            self._copy(self._tee, message)

    def _copy(self, tee: BinaryIO, message: bytes) -> None:
        try:
            tee.write(message + self._delimiter)
        except BrokenPipeError:
            # Whoever reads the copy has seen enough: no reason not to send the rest. What is still to be flushed
            # goes nowhere.
            self._tee = None
            os.dup2(os.open(os.devnull, os.O_WRONLY), tee.fileno())

    def _value(self, text: bytes) -> bytes:
        value = decode(text, self._value_encoding)
        if self._taken is None:
            return value
        try:
            return self._taken(value)
        except ValueError as error:
            self._producer.flush()
            raise CliError(f"record {self.sent + 1}: the value {error}; those before it were sent") from None

    def _delivered(self, delivery: Delivery) -> None:
        error = delivery.exception()
        if error is not None:
            self.failed += 1
            self.first_error = self.first_error or line(error)


def _header(word: str) -> tuple[str, bytes | None]:
    name, equals, value = word.partition("=")
    if not name:
        raise UsageError(f"-H takes NAME=VALUE or NAME, not {word!r}")
    return name, as_typed(value) if equals else None


def _messages(args: argparse.Namespace) -> Iterator[bytes]:
    for name in args.file or ["-"]:
        if name == "-":
            yield from _read(sys.stdin.buffer, args)
        else:
            with open(name, "rb") as stream:
                yield from _read(stream, args)


def _read(stream: BinaryIO, args: argparse.Namespace) -> Iterable[bytes]:
    if args.whole:
        return [stream.read()]
    return split_messages(stream, unescape(args.delimiter))


def _run(args: argparse.Namespace) -> int:
    from ottla.client.blocking import Producer
    from ottla.client.config import ProducerConfig

    if not unescape(args.delimiter):
        raise UsageError("-D must not be empty")
    if args.count < 0:
        raise UsageError(f"-c {args.count}: it is how many records to send")
    # A person waits less patiently than a service for a topic that may never be there.
    fixed: dict[str, object] = {
        "compression_type": args.compression,
        "acks": args.acks,
        "max_block_ms": 10_000,
    }
    with explained(args), Producer(settings(args, ProducerConfig, **fixed)) as producer:
        sender = _Sender(args, producer)
        for count, message in enumerate(_messages(args), 1):
            sender.send(message)
            if count == args.count:
                break
        producer.flush()
    if sender.failed:
        raise CliError(f"{sender.failed} of {sender.sent} records were not delivered: {sender.first_error}")
    if not args.quiet:
        say(f"{counted(sender.sent, 'record')} sent to {args.topic}")
    return 0


COMMAND = Command(
    "produce",
    "send records from files or standard input",
    argument("file", nargs="*", metavar="FILE", complete="file", help="what to send (default, and -: stdin)"),
    argument("-t", "--topic", required=True, metavar="TOPIC", complete="topic", help="where to"),
    argument("-p", "--partition", type=int, default=-1, metavar="N", help="the partition (default: by key)"),
    argument("-k", "--key", metavar="KEY", help="the key of every record"),
    argument("-K", "--key-delimiter", metavar="DELIM", help="what stands between key and value"),
    argument("-D", "--delimiter", default="\\n", metavar="DELIM", help="what ends a record (default: \\n)"),
    argument(
        "-H", "--header", action="append", default=[], metavar="NAME=VALUE", help="a header (may be repeated)"
    ),
    argument(
        "-z",
        "--compression",
        default="none",
        choices=("none", "gzip", "snappy", "lz4", "zstd"),
        help="how to compress batches (default: none)",
    ),
    argument(
        "--acks", default="all", choices=("all", "-1", "0", "1"), help="who must have it (default: all)"
    ),
    argument("-c", "--count", type=int, default=0, metavar="N", help="stop after so many records"),
    *(
        argument(
            f"--{side}-encoding",
            choices=ENCODINGS,
            default=RAW,
            help=f"how the {side} is written in the input: as it is (raw, the default), hex or base64",
        )
        for side in ("key", "value")
    ),
    REGISTRY,
    argument(
        "--value-schema",
        metavar="FILE",
        complete="file",
        help="with --registry: the schema, .avsc, .json (JSON Schema), .desc or .proto; it is registered under "
        "TOPIC-value (without: the newest there)",
    ),
    argument(
        "--value-message", metavar="NAME", help="with --registry: the full name of the Protobuf message"
    ),
    switch("--whole", help="each file is one record"),
    switch("-Z", "--null", help="an empty key or value is null"),
    switch("-T", "--tee", help="copy what is sent to stdout"),
    switch("-q", "--quiet", help="do not say how many were sent"),
    *CLUSTER,
    run=_run,
    details="""examples:
  echo 'hello' | ottla produce -t greetings
  ottla produce -t users -K : -z zstd users.txt      lines like key:value
  ottla produce -t images --whole *.png              each file one record
  ottla produce -t orders --registry http://127.0.0.1:8081 --value-schema order.avsc orders.jsonl

with --registry each value is JSON text, and sent as its schema says, with Confluent's frame (Avro and Protobuf need the
extra `spark`; JSON is not held against its schema); --registry - takes schema.registry.url of the settings, of which
basic.auth.user.info, bearer.auth.token and schema.registry.ssl.ca.location are others""",
)
