"""A disk that is full: an error for what does not fit, and everything acknowledged is there when there is room.

The small disk is a tmpfs where the tests may mount one (root); everywhere else, and there too, a limit on the size
of files stands in for it.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.faults.conftest import MakeNode
from tests.interop.ottla_node import OttlaNode
from tests.interop.scripts.batches import Batch, Rec
from tests.support.log_files import disk_batches
from tests.support.raw_client import RawClient

SMALL_MIB = 24
VALUE = b"x" * 60_000
DESCRIBE_LOG_DIRS = 35


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A directory with little room; `grow` gives it more."""
    where = tmp_path / "small"
    where.mkdir()
    mount = shutil.which("mount")
    if mount is None:
        pytest.skip("there is no mount command here")
    command = [mount, "-t", "tmpfs", "-o", f"size={SMALL_MIB}m", "tmpfs", str(where)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.skip(f"no tmpfs may be mounted here: {done.stderr.strip()}")
    yield where
    subprocess.run(["umount", "-l", str(where)], check=True)


def grow(where: Path) -> None:
    subprocess.run(["mount", "-o", "remount,size=200m", str(where)], check=True)


def fill(client: RawClient, topic: str, partition: int = 0) -> tuple[list[bytes], str]:
    """Write until it fails; what was acknowledged, and how it failed."""
    acknowledged: list[bytes] = []
    for n in range(5000):
        value = b"%d " % n + VALUE
        try:
            answer = client.produce(topic, partition, Batch([Rec(value)]).encode())
        except ConnectionError:
            return acknowledged, "closed"
        if answer["error_code"] != "none":
            return acknowledged, answer["error_code"]
        assert answer["base_offset"] == n
        acknowledged.append(value)
    raise AssertionError("the disk did not fill up")


def check_acknowledged(node: OttlaNode, data_dir: Path, topic: str, acknowledged: list[bytes]) -> None:
    with RawClient(node) as client:
        found = client.read(topic)
        assert found[: len(acknowledged)] == acknowledged
        assert client.write(topic, 0, [b"more"]) == len(found)
    assert all(batch.crc_ok for batch in disk_batches(data_dir, topic))


def test_the_only_disk_is_full(make_node: MakeNode, small_disk: Path) -> None:
    node = make_node(data_dir=small_disk / "data")
    node.start()
    with RawClient(node) as client:
        topic = client.create_topic("orders", segment_bytes=4_000_000)
        acknowledged, error = fill(client, topic)
    assert error in ("kafka_storage_error", "closed")
    assert len(acknowledged) > 100
    # Without any directory left a broker ends, as Kafka's does, and says why.
    assert node.wait(30) == 70
    assert "No space left on device" in node.log_text()
    assert node.log_text().splitlines()[-1].startswith("ottla: stopped, because it could not go on: ")
    grow(small_disk)
    with node.start():
        check_acknowledged(node, small_disk / "data", topic, acknowledged)
    assert node.exit_code == 0


def test_one_of_two_disks_is_full(make_node: MakeNode, small_disk: Path, tmp_path: Path) -> None:
    large, small = tmp_path / "large", small_disk / "data"
    node = make_node({"metadata.log.dir": str(large)}, data_dir=large, log_dirs=[large, small])
    with node.start(), RawClient(node) as client:
        for n in range(4):
            client.create_topic(f"t{n}", segment_bytes=4_000_000)
        topics = {n: _dir_of(n, large, small) for n in ("t0", "t1", "t2", "t3")}
        full = next(n for n, where in topics.items() if where == small)
        fine = next(n for n, where in topics.items() if where == large)
        acknowledged, error = fill(client, full)
        assert error == "kafka_storage_error"
        for n in range(200):
            assert client.write(fine, 0, [b"%d" % n]) == n
        assert client.produce(full, 0, Batch().encode())["error_code"] == "kafka_storage_error"
        assert client.fetch(full, 0, 0)["error_code"] == "kafka_storage_error"
        errors = {d["log_dir"]: d["error_code"] for d in _log_dirs(client)}
        assert errors[str(small)] == "kafka_storage_error"
        assert errors[str(large)] == "none"
        client.create_topic("new")
        assert (large / "new-0").is_dir()
    assert node.exit_code == 0
    grow(small_disk)
    with node.start():
        check_acknowledged(node, small, full, acknowledged)
        with RawClient(node) as client:
            assert client.read(fine) == [b"%d" % n for n in range(200)]


def test_files_that_may_not_grow(make_node: MakeNode, tmp_path: Path) -> None:
    """The same by a limit on the size of files, which needs no rights."""
    limit_kib = 16 * 1024  # larger than an index file, smaller than a segment
    limited = make_node(prefix=("bash", "-c", f'ulimit -f {limit_kib}; exec "$@"', "limited"))
    limited.start()
    with RawClient(limited) as client:
        topic = client.create_topic("orders")
        acknowledged, error = fill(client, topic)
    assert error in ("kafka_storage_error", "closed")
    assert len(acknowledged) > 100
    assert limited.wait(30) == 70
    free = make_node(data_dir=limited.data_dir)
    with free.start():
        check_acknowledged(free, limited.data_dir, topic, acknowledged)


def _dir_of(topic: str, *candidates: Path) -> Path:
    (found,) = [where for where in candidates if (where / f"{topic}-0").is_dir()]
    return found


def _log_dirs(client: RawClient) -> list[dict[str, object]]:
    found: list[dict[str, object]] = client.ask(DESCRIBE_LOG_DIRS, 4, {"topics": None})["results"]
    return found
