"""`ottla topic trim`: forget the records below an offset (DeleteRecords).

What would go is shown first; only --execute lets it go. Owned by the process that runs one command.
"""

from __future__ import annotations

from ottla.cli.args import CliError, UsageError
from ottla.cli.client import admin, report
from ottla.cli.output import emit, say

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse

    from ottla.client.blocking import Admin
    from ottla.model.ids import TopicPartition

    Offsets = dict[TopicPartition, int]

_COLUMNS = ("topic", "partition", "begin", "end", "new_begin", "records")


def run(args: argparse.Namespace) -> int:
    from ottla.cli.group_topics import topic_partitions
    from ottla.client.offsets import EARLIEST, LATEST
    from ottla.model.errors import KafkaError

    if (args.before_offset is None) is not args.all:
        raise UsageError("up to where? give --before-offset N or --all")
    if args.before_offset is not None and args.before_offset < 0:
        raise UsageError(f"--before-offset {args.before_offset}: an offset is not negative")
    with admin(args) as client:
        partitions = topic_partitions(client, args.topic)
        begin, end = (_offsets(client, partitions, which) for which in (EARLIEST, LATEST))
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


def _offsets(client: Admin, partitions: list[TopicPartition], which: int) -> Offsets:
    return {tp: found.offset for tp, found in client.list_offsets(dict.fromkeys(partitions, which)).items()}
