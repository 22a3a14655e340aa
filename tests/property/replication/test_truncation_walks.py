"""Where two logs part is found by asking for epochs, whatever their histories (KIP-101, KIP-279).

A follower and a leader have the same log up to some offset, and after it what leaders of other epochs wrote. After as
many fetches as it takes the follower has the log of the leader, and no fetch cuts more than the rule of Kafka does.
"""

from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.replication.fetcher_support import (
    Leader,
    content,
    fetcher_of,
    follower,
    one_round,
    write,
)

from ottla.replication import fetcher as fetcher_module
from ottla.replication.fetcher import PartitionFetchState
from ottla.replication.partition import Partition

# More rounds than there can be epochs.
MAX_ROUNDS = 40


class History(NamedTuple):
    """Batches by the epoch they were written in: those of both, of the follower alone and of the leader alone."""

    common: list[int]
    ours: list[int]
    theirs: list[int]


def history(random: Random) -> History:
    """An epoch has one leader: after the logs have parted, no epoch is in both, but the one they parted in."""
    epoch = 0
    common = []
    for _ in range(random.randrange(4)):
        epoch += random.randrange(2)
        common.append(epoch)
    tails: tuple[list[int], list[int]] = ([], [])
    if common and random.random() < 0.5:
        # One of them has more of the last epoch than the other.
        tails[random.randrange(2)].extend([epoch] * random.randint(1, 3))
    for _ in range(random.randrange(7)):
        epoch += 1
        tails[random.randrange(2)].extend([epoch] * random.randint(1, 2))
    return History(common, *tails)


def written(history: History, dir: Path, random: Random) -> tuple[Leader, Partition, int]:
    """Both logs, and the epoch in which the leader leads now."""
    newest = max([0, *history.common, *history.ours, *history.theirs]) + 1
    leader = Leader(dir / "leader")
    leader.log()
    ours = follower(dir / "ours", epoch=newest)
    for epoch in history.common:
        values = [b"common"] * random.randint(1, 3)
        write(leader.log(), epoch, *values)
        write(ours.log, epoch, *values)
    for epoch in history.ours:
        write(ours.log, epoch, *[b"ours"] * random.randint(1, 3))
    for epoch in history.theirs:
        write(leader.log(), epoch, *[b"theirs"] * random.randint(1, 3))
    leader.lead(newest)
    return leader, ours, newest


def cut_by_kafka(
    ours: list[tuple[int, int]], our_end: int, theirs: list[tuple[int, int]], their_end: int
) -> int:
    """The lowest end that the follower's log has on its way, by the rules of 4.3.1, over bare lists of epochs."""

    def end_of(epochs: list[tuple[int, int]], end: int, epoch: int) -> tuple[int, int] | None:
        if epochs and epochs[-1][0] == epoch:
            return epoch, end
        later = [start for known, start in epochs if known > epoch]
        if not later:
            return None
        earlier = [known for known, _ in epochs if known <= epoch]
        return (earlier[-1] if earlier else epoch), later[0]

    while ours:
        last = ours[-1][0]
        said = end_of(theirs, their_end, last)
        assert said is not None, "the leader's newest epoch is later than any of ours"
        if said[0] >= last and said[1] >= our_end:
            break
        known = end_of(ours, our_end, said[0])
        if known is None:
            cut = min(said[1], our_end)
        elif known[0] != said[0]:
            cut = min(known[1], our_end)
        else:
            cut = min(known[1], said[1], our_end)
        our_end = cut
        ours = [entry for entry in ours if entry[1] < cut]
    return our_end


def walk(seed: int, dir: Path) -> None:
    random = Random(seed)
    past = history(random)
    leader, ours, _ = written(past, dir, random)
    before = content(ours.log)
    expected = cut_by_kafka(
        [tuple(entry) for entry in ours.log.epochs.entries],
        ours.log.log_end_offset,
        [tuple(entry) for entry in leader.log().epochs.entries],
        leader.log().log_end_offset,
    )
    fetcher = fetcher_of(ours)
    lowest = ours.log.log_end_offset
    for _ in range(MAX_ROUNDS):
        one_round(fetcher, leader)
        lowest = min(lowest, ours.log.log_end_offset)
    assert content(ours.log) == content(leader.log()), past
    assert lowest == expected, past
    if not past.ours:
        assert content(ours.log).startswith(before), past


@settings(max_examples=150, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_a_walk_ends_with_the_leaders_log(seed: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    walk(seed, tmp_path_factory.mktemp("walk"))


# -- bugs that must be found


def _leaders_end_alone(state: PartitionFetchState, epoch: int, end_offset: int) -> int:
    """KIP-101 without KIP-279: what the leader says, whether or not we know that epoch."""
    return min(end_offset, state.partition.log.log_end_offset)


def _one_epoch_too_much(state: PartitionFetchState, epoch: int, end_offset: int) -> int:
    log = state.partition.log
    return max([start for _, start in log.epochs.entries], default=0)


def _to_the_high_watermark(state: PartitionFetchState, epoch: int, end_offset: int) -> int:
    """Before KIP-101."""
    return state.partition.log.high_watermark


def _not_at_all(state: PartitionFetchState, epoch: int, end_offset: int) -> int:
    return state.partition.log.log_end_offset


@pytest.mark.parametrize(
    "bug", [_leaders_end_alone, _one_epoch_too_much, _to_the_high_watermark, _not_at_all]
)
def test_a_planted_bug_is_found(
    bug: Callable[[PartitionFetchState, int, int], int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetcher_module, "truncation_offset", bug)
    for seed in range(300):
        try:
            walk(seed, tmp_path / str(seed))
        except AssertionError:
            return
    pytest.fail("300 walks, and nothing was wrong")


def test_a_fetch_that_forgets_its_last_epoch_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without it the leader cannot know that the logs have parted."""
    real = fetcher_module.Asked
    monkeypatch.setattr(
        fetcher_module, "Asked", lambda offset, epoch, _, start: real(offset, epoch, -1, start)
    )
    for seed in range(300):
        try:
            walk(seed, tmp_path / str(seed))
        except AssertionError:
            return
    pytest.fail("300 walks, and nothing was wrong")
