"""`ottla consume --group`: print what a group's member is given, and commit what is printed.

At least once: an offset is committed only when the records before it have been written out. Owned by the process
that runs one command.
"""

from __future__ import annotations

import signal
import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ottla.cli.args import EXIT_OK, EXIT_SIGNALLED, UsageError
from ottla.cli.client import MAX_POLL_RECORDS, POLL_MS, explained, line, settings
from ottla.cli.output import say
from ottla.cli.records.format import compile_filter
from ottla.cli.records.registry import shown
from ottla.client.errors import Wakeup
from ottla.client.group.events import RebalanceListener
from ottla.model.errors import KafkaError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterable, Iterator

    from ottla.cli.records.format import Printer
    from ottla.client.blocking import Consumer
    from ottla.client.consumer.core import Records
    from ottla.model.ids import TopicPartition

_COMMIT_INTERVAL_S = 1.0
_INTERRUPTED_COMMIT_MS = 3000.0


class GroupReader(RebalanceListener):
    """Reads what it is assigned until it has enough."""

    def __init__(self, args: argparse.Namespace, consumer: Consumer, printer: Printer) -> None:
        self._args = args
        self._consumer = consumer
        self._print = printer
        self._keep = compile_filter(args.filter)
        self._shown = shown(args)
        self._out = sys.stdout.buffer
        self._left: int | None = args.count or None
        self._written: dict[TopicPartition, int] = {}
        self._ends: dict[TopicPartition, int] = {}
        self._was_assigned = False
        self._stayed_without = 0  # polls in a row after which the group had nothing for us
        self._next_commit_s = time.monotonic() + _COMMIT_INTERVAL_S
        self._is_interrupted = False
        self.exit_code = EXIT_OK

    # -- what the group gives and takes ---------------------------------------------------------------

    def on_partitions_assigned(self, partitions: list[TopicPartition]) -> None:
        self._was_assigned = True
        self._say_rebalanced("assigned", partitions)
        if self._args.exit and partitions:
            self._ends.update(self._consumer.end_offsets(partitions))

    def on_partitions_revoked(self, partitions: list[TopicPartition]) -> None:
        self._try_commit()
        self._forget(partitions)
        self._say_rebalanced("revoked", partitions)

    def on_partitions_lost(self, partitions: list[TopicPartition]) -> None:
        self._forget(partitions)
        self._say_rebalanced("lost", partitions)

    def _forget(self, partitions: Iterable[TopicPartition]) -> None:
        for tp in partitions:
            self._written.pop(tp, None)
            self._ends.pop(tp, None)

    def _say_rebalanced(self, what: str, partitions: list[TopicPartition]) -> None:
        if not self._args.quiet:
            names = ", ".join(f"{tp.topic} [{tp.partition}]" for tp in partitions) or "nothing"
            say(f"% Group {self._args.group} rebalanced: {what} {names}")

    # -- reading --------------------------------------------------------------------------------------

    def run(self) -> None:
        self._subscribe()
        while self._left != 0 and not self._is_interrupted and not self._is_done():
            limit = MAX_POLL_RECORDS if self._left is None else min(self._left, MAX_POLL_RECORDS)
            try:
                self._write(self._consumer.poll(POLL_MS, limit))
            except Wakeup:
                break
            if time.monotonic() >= self._next_commit_s:
                self._next_commit_s = time.monotonic() + _COMMIT_INTERVAL_S
                self._consumer.commit_async(self._written)
        if self._is_interrupted:
            self._try_commit()
        else:
            self._commit()

    def interrupt(self, number: int, *_: object) -> None:
        """Ctrl-C, or a request to end: what is being written is written, and committed, the group is left, and then
        it ends; a second one ends it now."""
        if self._is_interrupted:
            raise KeyboardInterrupt
        self._is_interrupted = True
        self.exit_code = EXIT_SIGNALLED + number
        self._consumer.wakeup()

    def _try_commit(self) -> None:
        """Commit, soon if the user waits. What is not committed will be read again: no reason to stop here."""
        try:
            self._commit(_INTERRUPTED_COMMIT_MS if self._is_interrupted else None)
        except KafkaError as error:
            say(f"ottla: what was printed last is not committed: {line(error)}")
            self._written.clear()

    def _subscribe(self) -> None:
        topics: list[str] = self._args.topic
        patterns = [topic for topic in topics if topic.startswith("^")]
        if patterns and len(topics) > 1:
            raise UsageError("an expression (-t '^...') stands alone: put the others into it")
        if patterns:
            import re

            try:
                re.compile(patterns[0])
            except re.error as error:
                raise UsageError(f"-t {patterns[0]}: {error}") from None
            self._consumer.subscribe(pattern=patterns[0], listener=self)
            return
        for topic in topics:
            self._consumer.partitions_for(topic)  # a topic that is not there would be waited for in silence
        self._consumer.subscribe(topics, listener=self)

    def _write(self, records: Records) -> None:
        for batch in records.values():
            wanted, failure = (batch, None) if self._shown is None else self._shown(batch)
            if self._keep is not None:
                wanted = list(filter(self._keep, wanted))
            if self._args.unbuffered:
                for record in wanted:
                    self._out.write(self._print(record))
                    self._out.flush()
            else:
                self._out.writelines(map(self._print, wanted))
            if self._left is not None:
                self._left -= len(wanted)
            if failure is not None:
                self._out.flush()
                raise failure
        self._out.flush()
        # Only now: what could not be written is read again, by us or by another member.
        self._written.update({tp: batch[-1].offset + 1 for tp, batch in records.items()})

    def _is_done(self) -> bool:
        """With -e: all that is assigned has been read up to what was its end."""
        if not self._args.exit or not self._was_assigned:
            return False
        if not self._ends and self._args.protocol == "consumer":
            self._stayed_without = self._stayed_without + 1 if self._gets_nothing() else 0
            return self._stayed_without > 1  # what an expression stands for may be found out meanwhile
        return all(self._consumer.position(tp) >= end for tp, end in self._ends.items())

    def _gets_nothing(self) -> bool:
        """With the new protocol partitions come when others have given them up: the group knows if any are to come."""
        from ottla.client.admin.groups import describe_request
        from ottla.client.admin.types import CONSUMER
        from ottla.client.network import group_coordinator

        who = self._consumer.group_metadata()
        request = describe_request(CONSUMER, who.group_id)
        group = self._consumer.request(request, group_coordinator(who.group_id)).groups[0]
        mine = [member for member in group.members if member.member_id == who.member_id]
        return group.group_state == "Stable" and not any(m.target_assignment.topic_partitions for m in mine)

    def _commit(self, timeout_ms: float | None = None) -> None:
        if self._written:
            self._consumer.commit(self._written, timeout_ms)


def run(args: argparse.Namespace, printer: Printer) -> int:
    from ottla.client.blocking import Consumer
    from ottla.client.config import ConsumerConfig

    if args.partition:
        raise UsageError("-p and --group exclude each other: the group says which partitions are read")
    resets = {"beginning": "earliest", "earliest": "earliest", "end": "latest", "latest": "latest"}
    if not all(word in resets for word in args.offset):
        raise UsageError("with --group, -o is beginning or end: where to start if nothing is committed")
    fixed: dict[str, object] = {
        "allow_auto_create_topics": False,
        "auto_offset_reset": resets[args.offset[-1]] if args.offset else "earliest",
        "group_id": args.group,
        "group_instance_id": args.instance_id,
        "group_protocol": args.protocol,
        "enable_auto_commit": False,
    }
    with explained(args), Consumer(settings(args, ConsumerConfig, **fixed)) as consumer:
        reader = GroupReader(args, consumer, printer)
        with _on_signals(reader.interrupt):
            reader.run()
            # Inside, so that no signal comes between the last commit and the word to the group.
            consumer.close()
    return reader.exit_code


@contextmanager
def _on_signals(interrupt: Callable[[int, object], None]) -> Iterator[None]:
    """A member that only vanished would hold its partitions until its session has expired."""
    numbers = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]
    before = {number: signal.getsignal(number) for number in numbers}
    for number, handler in before.items():
        # Under nohup a command outlives its terminal.
        if handler is not signal.SIG_IGN or number is signal.SIGINT:
            signal.signal(number, interrupt)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
