"""The collector: what has survived a slow collection is not visited again."""

import gc
import weakref

import pytest
from tests.unit.controller.support import Cluster

from ottla.metadata import records as r
from ottla.metadata.loader import MetadataLoader, MetadataPublisher
from ottla.node import stalls
from ottla.node.stalls import CHANGES_TO_FREEZE, FreezeImages, ShortCollections


class Ring:
    """Something that refers to itself."""

    def __init__(self) -> None:
        self.me = self


def visited(rings: list[Ring]) -> int:
    """How many of them a full collection would visit: what is frozen is in no list of the collector."""
    objects = set(map(id, gc.get_objects()))
    return sum(id(ring) in objects for ring in rings)


def test_what_survives_a_slow_collection_is_frozen_and_later_rings_are_still_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(stalls, "SLOW_S", -1.0)  # every collection counts as slow
    monkeypatch.setattr(stalls, "LEAST_FULL_S", 3600.0)  # and nothing is thawed, however slow the machine is
    short = ShortCollections()
    short.install()
    try:
        assert gc.get_freeze_count() > 0
        keep = [Ring() for _ in range(1000)]
        gc.collect()
        assert visited(keep) == 0
        gone = weakref.ref(Ring())
        gc.collect()
        assert gone() is None
        assert all(ring.me is ring for ring in keep)
    finally:
        short.remove()
    assert gc.get_freeze_count() == 0


def test_frozen_rings_are_found_by_and_by(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stalls, "SLOW_S", -1.0)
    monkeypatch.setattr(stalls, "LEAST_FULL_S", 0.0)
    short = ShortCollections()
    short.install()
    try:
        ring = Ring()
        gone = weakref.ref(ring)
        gc.collect()
        assert gc.get_freeze_count() == 0  # thawed: the next visits everything
        gc.collect()
        assert gc.get_freeze_count() > 0
        del ring
        assert gone() is not None  # frozen
        short._full_s = 0.0  # as if visiting everything had been quick
        gc.collect()
        gc.collect()
        assert gone() is None
    finally:
        short.remove()


def test_a_quick_collection_freezes_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(stalls, "SLOW_S", 3600.0)
    short = ShortCollections()
    short.install()
    try:
        keep = [Ring() for _ in range(1000)]
        gc.collect()
        assert visited(keep) == 1000
    finally:
        short.remove()


def test_what_a_load_makes_is_frozen_but_not_its_rings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stalls, "SLOW_S", 3600.0)  # by nobody else but the load
    frozen = gc.get_freeze_count()  # by somebody else, perhaps: tests share a process
    stalls.freeze_what_stays()
    assert gc.get_freeze_count() <= frozen  # not ours to freeze, without ShortCollections
    short = ShortCollections()
    short.install()
    try:
        keep = [Ring() for _ in range(1000)]
        gone = weakref.ref(Ring())
        assert visited(keep) == 1000
        stalls.freeze_what_stays()
        assert gone() is None
        assert visited(keep) == 0
    finally:
        short.remove()


def test_an_image_in_which_thousands_of_partitions_are_new_is_frozen(monkeypatch: pytest.MonkeyPatch) -> None:
    frozen: list[int] = []
    monkeypatch.setattr(stalls, "freeze_what_stays", lambda: frozen.append(1))
    loader = MetadataLoader(Cluster(1).image)
    publisher = MetadataPublisher(loader.image)
    publisher.subscribe(FreezeImages())

    def create(name: bytes, partitions: int) -> None:
        topic_id = name * 16
        records = [r.TopicRecord(name=name.decode(), topic_id=topic_id)]
        records += [
            r.PartitionRecord(partition_id=number, topic_id=topic_id, replicas=[1], isr=[1], leader=1)
            for number in range(partitions)
        ]
        loader.replay(records, loader.next_offset, 1, 1)
        delta = loader.publish()
        publisher.publish(loader.image, delta)

    create(b"a", CHANGES_TO_FREEZE - 1)
    assert not frozen
    create(b"b", 1)
    assert len(frozen) == 1
    create(b"c", 1)
    assert len(frozen) == 1
    create(b"d", 3 * CHANGES_TO_FREEZE)
    assert len(frozen) == 2
