"""kcat, where it is installed: librdkafka's consumer without groups, and what people type by hand."""

from __future__ import annotations

import json
import shutil
import subprocess

import pytest
from tests.clients.conftest import MakeTopic

KCAT = shutil.which("kcat") or shutil.which("kafkacat")
pytestmark = pytest.mark.skipif(KCAT is None, reason="kcat is not installed")


def kcat(*arguments: str, stdin: bytes = b"") -> bytes:
    """What it prints."""
    assert KCAT is not None
    return subprocess.run([KCAT, *arguments], input=stdin, capture_output=True, check=True, timeout=60).stdout


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_lines_go_in_and_come_out(address: str, make_topic: MakeTopic, codec: str) -> None:
    topic = make_topic()
    lines = b"".join(b"key-%d:value-%d\n" % (n, n) for n in range(100))
    kcat("-b", address, "-P", "-t", topic, "-K:", "-z", codec, "-H", "h=1", stdin=lines)
    out = kcat("-b", address, "-C", "-t", topic, "-e", "-q", "-f", "%k:%s\n")
    assert out == lines
    assert kcat("-b", address, "-C", "-t", topic, "-e", "-q", "-o", "-1", "-f", "%h %o\n") == b"h=1 99\n"


def test_metadata_and_offsets(address: str, make_topic: MakeTopic) -> None:
    topic = make_topic(3)
    listed = json.loads(kcat("-b", address, "-L", "-J", "-t", topic))
    assert [len(t["partitions"]) for t in listed["topics"]] == [3]
    kcat("-b", address, "-P", "-t", topic, "-p", "1", stdin=b"a\nb\n")
    assert kcat("-b", address, "-Q", "-t", f"{topic}:1:-1").split()[-1] == b"2"
