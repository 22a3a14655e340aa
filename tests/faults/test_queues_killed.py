"""Queues under kill -9: what was confirmed as accepted is never delivered again, and everything else is in the end."""

from __future__ import annotations

import threading
import uuid
from pathlib import Path
from random import Random

from tests.interop.ottla_node import OttlaNode
from tests.support.raw_client import RawClient
from tests.support.share_member import ACCEPT, REJECT, RELEASE, Runs, ShareMember, configure

ROUNDS = 5
RECORDS = 400
# Rejected records are gone for good: few of them, so that there is something to accept.
KINDS = [ACCEPT] * 8 + [RELEASE] * 5 + [REJECT]


class Ledger:
    """What is known of the records."""

    def __init__(self, rng: Random) -> None:
        self.rng = rng
        self.done: set[int] = set()  # confirmed as accepted or rejected
        self.asked: set[int] = set()  # the same was said, and no answer came

    def delivered(self, runs: Runs) -> list[int]:
        offsets = [offset for first, last, _ in runs for offset in range(first, last + 1)]
        again = self.done.intersection(offsets)
        assert not again, f"{sorted(again)} were done and are delivered again"
        return offsets

    def answer(self, member: ShareMember, offsets: list[int], kinds: list[int]) -> None:
        said = [(offset, offset, self.rng.choice(kinds)) for offset in offsets]
        final = {offset for offset, _, kind in said if kind != RELEASE}
        self.asked |= final
        if member.acknowledge({0: said}) == {0: "none"}:
            self.done |= final


def work_until_killed(node: OttlaNode, topic_id: uuid.UUID, ledger: Ledger) -> None:
    killer = threading.Timer(ledger.rng.uniform(0.3, 1.2), node.kill)
    member = ShareMember(node, "g", "q", topic_id).join()
    killer.start()
    try:
        while True:
            offsets = ledger.delivered(
                member.take(records=ledger.rng.choice([1, 20, 100]), wait_ms=200)[0][0]
            )
            some = [offset for offset in offsets if ledger.rng.random() < 0.8]
            if some:
                ledger.answer(member, some, KINDS)
    except (ConnectionError, AssertionError) as error:
        if isinstance(error, AssertionError) and "nothing to take" not in str(error):
            raise
    finally:
        killer.join()


def test_what_was_accepted_is_never_delivered_again(tmp_path: Path) -> None:
    ledger = Ledger(Random(7))
    node = OttlaNode(tmp_path / "data")
    with node, RawClient(node) as client:
        topic_id = client.create_topic_with_id("q")
        configure(client, "g", auto_offset_reset="earliest", delivery_count_limit=10)
        for first in range(0, RECORDS, 20):
            client.write("q", 0, [b"%d" % offset for offset in range(first, first + 20)])
    for _ in range(ROUNDS):
        with OttlaNode(tmp_path / "data") as node:
            work_until_killed(node, topic_id, ledger)
    with OttlaNode(tmp_path / "data") as node, RawClient(node) as client:
        client.write("q", 0, [b"last"])
        member = ShareMember(node, "g", "q", topic_id).join()
        seen: set[int] = set()
        while RECORDS not in seen:
            offsets = ledger.delivered(member.take()[0][0])
            seen.update(offsets)
            ledger.answer(member, offsets, [ACCEPT])
        # Who was not delivered now was done before, told or not.
        assert set(range(RECORDS)) - seen <= ledger.asked
        assert ledger.done
