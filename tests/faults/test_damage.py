"""Files that are torn, damaged or gone when the broker starts: what is whole is served, what is not is cut off.

After a kill the log is checked from its recovery point and ends at the first damage; after a clean stop nothing
is read, and an index that is missing or wrong must not lead to wrong records.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.faults.conftest import MakeNode
from tests.interop.ottla_node import OttlaNode
from tests.interop.scripts.batches import BASE_TIMESTAMP, Batch, Rec
from tests.support.log_files import DiskBatch, disk_batches, segments
from tests.support.raw_client import LIST_OFFSETS, RawClient

TOPIC = "orders"
BATCHES, PER_BATCH = 60, 5
SETTINGS: dict[str, object] = {
    "log.segment.bytes": 1_048_576,
    "log.index.interval.bytes": 4096,
    "log.retention.ms": -1,
}


def value(n: int) -> bytes:
    return b"%d " % n + b"." * 5000


def values(count: int) -> list[bytes]:
    return [value(n) for n in range(count)]


def write(client: RawClient, topic: str, producer: int) -> None:
    """Batches of five, a second of event time each, numbered as an idempotent producer does."""
    for n in range(BATCHES):
        records = [Rec(value(n * PER_BATCH + i), timestamp_delta=i) for i in range(PER_BATCH)]
        batch = Batch(
            records,
            base_timestamp=BASE_TIMESTAMP + n * 1000,
            producer_id=producer,
            producer_epoch=0,
            base_sequence=n * PER_BATCH,
        )
        assert client.produce(topic, 0, batch.encode())["error_code"] == "none"


@pytest.fixture
def filled(make_node: MakeNode) -> OttlaNode:
    """A running broker whose topic has several segments."""
    node = make_node(SETTINGS)
    node.start()
    with RawClient(node) as client:
        client.create_topic(TOPIC)
        write(client, TOPIC, client.producer_id())
    assert len(segments(node.data_dir, TOPIC)) > 1
    return node


def offset_at(client: RawClient, topic: str, timestamp: int) -> int:
    wanted = {"partition_index": 0, "current_leader_epoch": -1, "timestamp": timestamp}
    body = {"replica_id": -1, "isolation_level": 0, "topics": [{"name": topic, "partitions": [wanted]}]}
    found = client.ask(LIST_OFFSETS, 7, body)["topics"][0]["partitions"][0]
    assert found["error_code"] == "none", found
    offset: int = found["offset"]
    return offset


def check(node: OttlaNode, count: int, topic: str = TOPIC) -> None:
    """The first `count` records are there by every way to find them, and the log goes on after them."""
    with RawClient(node) as client:
        assert client.read(topic) == values(count)
        for first in (1, count // 2, count - 1):
            assert client.read(topic, 0, first) == values(count)[first:]
        for n in (0, count // PER_BATCH // 2, count // PER_BATCH - 1):
            assert offset_at(client, topic, BASE_TIMESTAMP + n * 1000) == n * PER_BATCH
        assert client.write(topic, 0, [b"more"]) == count
        assert client.read(topic, 0, count) == [b"more"]
    assert all(batch.crc_ok for batch in disk_batches(node.data_dir, topic))


# -- the log itself, after a kill


def cut(path: Path, size: int) -> None:
    with path.open("r+b") as file:
        file.truncate(size)


def flip(path: Path, position: int) -> None:
    with path.open("r+b") as file:
        file.seek(position)
        (byte,) = file.read(1)
        file.seek(position)
        file.write(bytes([byte ^ 0x10]))


def append(path: Path, data: bytes) -> None:
    with path.open("ab") as file:
        file.write(data)


TORN: dict[str, tuple[int, Callable[[DiskBatch], None]]] = {
    # how many batches from the end are gone, and what happens to the first of them
    "half of the last batch": (1, lambda b: cut(b.path, b.position + b.size_bytes // 2)),
    "a header of the last batch": (1, lambda b: cut(b.path, b.position + 30)),
    "one byte of the last batch": (1, lambda b: cut(b.path, b.position + b.size_bytes - 1)),
    "exactly the last batch": (1, lambda b: cut(b.path, b.position)),
    "a bit of a value in the last batch": (1, lambda b: flip(b.path, b.position + 1000)),
    "a bit of a value in the tail": (5, lambda b: flip(b.path, b.position + 1000)),
    "a bit of a length in the tail": (3, lambda b: flip(b.path, b.position + 9)),
    "a bit of the crc in the tail": (3, lambda b: flip(b.path, b.position + 18)),
    "the magic in the tail": (2, lambda b: flip(b.path, b.position + 16)),
    "a bit two segments back": (50, lambda b: flip(b.path, b.position + 1000)),
    "zeros after the end": (0, lambda b: append(b.path, bytes(5000))),
    "noise after the end": (0, lambda b: append(b.path, bytes(range(256)) * 20)),
}


@pytest.mark.parametrize("case", TORN)
def test_a_torn_tail_is_cut_off(filled: OttlaNode, case: str) -> None:
    filled.kill()
    gone, damage = TORN[case]
    batches = disk_batches(filled.data_dir, TOPIC)
    damage(batches[-max(gone, 1)])
    with filled.start():
        assert "with recovery" in filled.log_text()
        check(filled, (BATCHES - gone) * PER_BATCH)
    with filled.start():
        assert "after a clean stop" in filled.log_text()


def test_a_producer_is_known_after_a_torn_tail(filled: OttlaNode) -> None:
    filled.kill()
    batches = disk_batches(filled.data_dir, TOPIC)
    cut(batches[-1].path, batches[-1].position + 10)
    first_lost = (BATCHES - 1) * PER_BATCH
    lost = Batch(
        [Rec(value(first_lost + i)) for i in range(PER_BATCH)],
        producer_id=batches[-1].producer_id,
        producer_epoch=0,
        base_sequence=first_lost,
    )
    with filled.start(), RawClient(filled) as client:
        kept = lost.with_(base_sequence=first_lost - PER_BATCH).encode()
        again = client.produce(TOPIC, 0, kept)
        assert (again["error_code"], again["base_offset"]) == ("none", first_lost - PER_BATCH)
        ahead = client.produce(TOPIC, 0, lost.with_(base_sequence=first_lost + PER_BATCH).encode())
        assert ahead["error_code"] == "out_of_order_sequence_number"
        sent_again = client.produce(TOPIC, 0, lost.encode())
        assert (sent_again["error_code"], sent_again["base_offset"]) == ("none", first_lost)
        assert client.read(TOPIC) == values(BATCHES * PER_BATCH)


# -- the files beside it


def remove(path: Path) -> None:
    path.unlink()


def empty(path: Path) -> None:
    path.write_bytes(b"")


def noise(path: Path) -> None:
    path.write_bytes(bytes(range(255, -1, -1)) * 3)


def zeros(path: Path) -> None:
    path.write_bytes(bytes(path.stat().st_size or 64))


def odd_size(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"\x01\x02\x03")


Damage = Callable[[Path], object]
# A topic for each case, so that one start shows them all.
BESIDE: dict[str, tuple[str, Damage]] = {
    f"{kind}-{damage.__name__}": (f"*{kind}", damage)
    for kind, damages in {
        "index": (remove, empty, noise, zeros, odd_size),
        "timeindex": (remove, empty, noise, zeros, odd_size),
        "snapshot": (remove, empty, noise, zeros),
        "leader-epoch-checkpoint": (remove, empty, noise),
    }.items()
    for damage in damages
}
CHECKPOINTS = (
    "recovery-point-offset-checkpoint",
    "log-start-offset-checkpoint",
    "replication-offset-checkpoint",
    "cleaner-offset-checkpoint",
)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Two data directories with the same content: one stopped cleanly, one killed."""
    made = {}
    for how in ("stop", "kill"):
        where = tmp_path_factory.mktemp("whole") / "data"
        node = OttlaNode(where, SETTINGS)
        node.start()
        with RawClient(node) as client:
            producer = client.producer_id()
            for topic in (TOPIC, *BESIDE):
                client.create_topic(topic)
                write(client, topic, producer)
        # Both have the indexes, snapshots and checkpoints of a stop; the killed one is not marked as clean.
        node.restart()
        if how == "stop":
            assert node.stop() == 0
        else:
            node.kill()
        made[how] = where
    return made


@pytest.mark.parametrize("stop", ["stop", "kill"])
def test_damaged_files_beside_the_log(
    make_node: MakeNode, whole: dict[str, Path], tmp_path: Path, stop: str
) -> None:
    shutil.copytree(whole[stop], tmp_path / "data")
    for topic, (pattern, damage) in BESIDE.items():
        found = list((tmp_path / "data" / f"{topic}-0").glob(pattern))
        assert found, topic
        for path in found:
            damage(path)
    node = make_node(SETTINGS)
    with node.start():
        for topic in BESIDE:
            check(node, BATCHES * PER_BATCH, topic)
    assert node.exit_code == 0


@pytest.mark.parametrize("stop", ["stop", "kill"])
@pytest.mark.parametrize("damage", [remove, empty, noise])
def test_damaged_checkpoints(
    make_node: MakeNode, whole: dict[str, Path], tmp_path: Path, stop: str, damage: Damage
) -> None:
    shutil.copytree(whole[stop], tmp_path / "data")
    for name in CHECKPOINTS:
        damage(tmp_path / "data" / name)
    node = make_node(SETTINGS)
    with node.start():
        check(node, BATCHES * PER_BATCH)
    assert node.exit_code == 0


@pytest.mark.parametrize("damage", [empty, noise])
def test_a_damaged_marker_of_a_clean_stop(
    make_node: MakeNode, whole: dict[str, Path], tmp_path: Path, damage: Damage
) -> None:
    shutil.copytree(whole["stop"], tmp_path / "data")
    damage(tmp_path / "data" / ".kafka_cleanshutdown")
    with make_node(SETTINGS).start() as node:
        check(node, BATCHES * PER_BATCH)


def test_everything_but_the_log_is_gone(make_node: MakeNode, whole: dict[str, Path], tmp_path: Path) -> None:
    shutil.copytree(whole["kill"], tmp_path / "data")
    for path in (tmp_path / "data" / f"{TOPIC}-0").iterdir():
        if path.suffix != ".log" and path.name != "partition.metadata":
            path.unlink()
    with make_node(SETTINGS).start() as node:
        check(node, BATCHES * PER_BATCH)


# -- what says whose directory it is, and the metadata log


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"version=1\n",
        b"version=7\nnode.id=1\ncluster.id=x\n",
        b"version=1\nnode.id=one\ncluster.id=x\n",
        b"version=1\nnode.id=1\ncluster.id=x\ndirectory.id=!!\n",
        bytes(range(256)),
    ],
    ids=["empty", "short", "version 7", "node id", "directory id", "noise"],
)
def test_a_meta_properties_that_cannot_be_read(
    make_node: MakeNode, whole: dict[str, Path], tmp_path: Path, content: bytes
) -> None:
    shutil.copytree(whole["stop"], tmp_path / "data")
    (tmp_path / "data" / "meta.properties").write_bytes(content)
    node = make_node(SETTINGS)
    node.launch()
    assert node.wait(30) != 0
    said = node.log_text()
    assert len(said.strip().splitlines()) == 1, said
    assert "meta.properties" in said
    assert "internal error" not in said


def metadata_dir(data_dir: Path) -> Path:
    return data_dir / "__cluster_metadata-0"


QUORUM_STATE = {
    "gone": remove,
    "empty": empty,
    "noise": noise,
    "half": lambda path: path.write_bytes(path.read_bytes()[:20]),
}


@pytest.mark.parametrize("case", QUORUM_STATE)
def test_a_damaged_quorum_state(
    make_node: MakeNode, whole: dict[str, Path], tmp_path: Path, case: str
) -> None:
    """It holds the vote: without it the log itself says which epoch it is; one that is damaged is not guessed at."""
    shutil.copytree(whole["kill"], tmp_path / "data")
    QUORUM_STATE[case](metadata_dir(tmp_path / "data") / "quorum-state")
    node = make_node(SETTINGS)
    if case == "gone":
        with node.start():
            check(node, BATCHES * PER_BATCH)
    else:
        node.launch()
        assert node.wait(30) != 0
        last = node.log_text().strip().splitlines()[-1]
        assert "quorum-state" in last
        assert "internal error" not in node.log_text()


TORN_METADATA: dict[str, Callable[[Path], None]] = {
    "a few bytes short": lambda path: cut(path, path.stat().st_size - 7),
    "noise after the end": lambda path: append(path, b"\x01" * 300),
    "zeros after the end": lambda path: append(path, bytes(5000)),
    "half a header after the end": lambda path: append(path, path.read_bytes()[:30]),
}


@pytest.mark.parametrize("case", TORN_METADATA)
def test_a_torn_metadata_log(make_node: MakeNode, whole: dict[str, Path], tmp_path: Path, case: str) -> None:
    shutil.copytree(whole["kill"], tmp_path / "data")
    newest = sorted(metadata_dir(tmp_path / "data").glob("*.log"))[-1]
    TORN_METADATA[case](newest)
    node = make_node(SETTINGS)
    with node.start():
        check(node, BATCHES * PER_BATCH)
        with RawClient(node) as client:
            client.create_topic("afterwards")
    with node.start(), RawClient(node) as client:
        assert client.write("afterwards", 0, [b"there"]) == 0


@pytest.mark.parametrize("kind", [".index", ".timeindex", ".snapshot", "leader-epoch-checkpoint"])
def test_metadata_log_without_a_file_beside_it(
    make_node: MakeNode, whole: dict[str, Path], tmp_path: Path, kind: str
) -> None:
    shutil.copytree(whole["stop"], tmp_path / "data")
    for path in metadata_dir(tmp_path / "data").glob(f"*{kind}"):
        path.unlink()
    with make_node(SETTINGS).start() as node:
        check(node, BATCHES * PER_BATCH)


# -- a directory that is gone


def test_a_directory_that_cannot_be_used_is_offline(make_node: MakeNode, tmp_path: Path) -> None:
    good, bad = tmp_path / "good", tmp_path / "bad"
    node = make_node({"metadata.log.dir": str(good)}, data_dir=good, log_dirs=[good, bad])
    with node.start(), RawClient(node) as client:
        for n in range(4):
            client.write(client.create_topic(f"t{n}"), 0, [b"kept"])
        here = next(f"t{n}" for n in range(4) if (good / f"t{n}-0").is_dir())
        there = next(f"t{n}" for n in range(4) if (bad / f"t{n}-0").is_dir())
    bad.rename(tmp_path / "aside")
    bad.write_text("no directory")
    with node.start(), RawClient(node) as client:
        assert client.read(here) == [b"kept"]
        assert client.fetch(there, 0, 0)["error_code"] == "kafka_storage_error"
        assert client.produce(there, 0, Batch().encode())["error_code"] == "kafka_storage_error"
    bad.unlink()
    (tmp_path / "aside").rename(bad)
    with node.start(), RawClient(node) as client:
        assert client.read(here) == client.read(there) == [b"kept"]


def test_two_brokers_on_one_directory(make_node: MakeNode, tmp_path: Path) -> None:
    with make_node().start():
        second = make_node()
        second.launch()
        assert second.wait(30) != 0
        assert "lock" in second.log_text().strip().splitlines()[-1].lower()
