"""The swap: one data directory, served by Ottla, by Apache Kafka 4.3.1, and by Ottla again, and the reverse.

This is what lets a user try Ottla and go back. After a clean stop the next broker comes up without recovery and
without complaint; after kill -9 it recovers; in both cases every topic, config, record and producer is as it was.
"""

from __future__ import annotations

import re
from dataclasses import asdict
from pathlib import Path

import pytest
from tests.interop.apache import ApacheKafka
from tests.interop.ottla_node import OttlaNode
from tests.interop.process import ServerProcess, free_ports
from tests.interop.swap_world import World, observe, populate, repeated_offset, write_more

pytestmark = pytest.mark.interop

COMPLAINTS = re.compile(
    r"corrupt|found invalid|rebuilding (?!producer state)|rebuilt|recovering|could not find|no clean shutdown|"
    r"not found|\bWARN\b|\bERROR\b|\bFATAL\b|Traceback",
    re.IGNORECASE,
)
# Said at every start, also by Apache on its own directory: the metadata log has no clean shutdown marker.
ALWAYS_SAID = re.compile(r"__cluster_metadata-0.*(recovering|rebuilding)|WARN.*controller activation", re.I)
# Now and then: Apache's node registers its controller with itself a moment before that has become the active one.
TOO_EARLY = re.compile(
    r"^.*ERROR.*handling request RequestHeader\(apiKey=CONTROLLER_REGISTRATION.*\n.*NotControllerException.*\n",
    re.M,
)
# Small cleaner buffers: a changed cleaner setting makes Apache allocate them twice, and its heap here is small.
SETTINGS: dict[str, object] = {"log.cleaner.backoff.ms": 1000, "log.cleaner.dedupe.buffer.size": 20 << 20}


def apache(where: Path, ports: list[int], **more: object) -> ApacheKafka:
    return ApacheKafka(where / "data", SETTINGS, port=ports[0], controller_port=ports[1], **more)  # type: ignore[arg-type]


def ottla(where: Path, ports: list[int]) -> OttlaNode:
    return OttlaNode(where / "data", SETTINGS, port=ports[0], controller_port=ports[1])


def end(server: ServerProcess, clean: bool) -> None:
    """Stop as asked."""
    if clean:
        server.stop()
    else:
        server.kill()


def assert_same(before: World, after: World) -> None:
    """Field by field, so that a failure names what changed."""
    ours, theirs = asdict(before), asdict(after)
    for kind, values in ours.items():
        if isinstance(values, dict):
            for name in sorted(set(values) | set(theirs[kind])):
                assert values.get(name) == theirs[kind].get(name), f"{kind} of {name}"
        else:
            assert values == theirs[kind], kind


def assert_no_complaint(server: ServerProcess) -> None:
    """After a clean stop of the other, there is nothing to recover and nothing to say about it."""
    text = TOO_EARLY.sub("", server.log_text())
    lines = text.splitlines()
    found = [i for i, line in enumerate(lines) if COMPLAINTS.search(line) and not ALWAYS_SAID.search(line)]
    assert not found, "\n".join(line for i in found[:10] for line in lines[i : i + 3])


def swap(first: ServerProcess, second: ServerProcess, clean: bool) -> None:
    """first -> second -> first on one directory, with more written in each turn."""
    with first:
        populate(first)
        before = observe(first)
        end(first, clean)
    with second:
        assert_same(before, observe(second))
        if clean:
            assert_no_complaint(second)
        assert repeated_offset(second, 4) == 4, "the producer's last batch is known again"
        write_more(second, 1)
        between = observe(second)
        end(second, clean)
    with first:
        assert_same(between, observe(first))
        if clean:
            assert_no_complaint(first)
        assert repeated_offset(first, 10) == 10
        write_more(first, 2)
        last = observe(first)
        end(first, clean)
    with second:
        assert_same(last, observe(second))


@pytest.mark.parametrize(
    "clean", [pytest.param(True, marks=pytest.mark.smoke), False], ids=["stop", "kill-9"]
)
def test_ottla_then_apache_then_ottla(tmp_path: Path, clean: bool) -> None:
    ports = free_ports(2)
    swap(ottla(tmp_path, ports), apache(tmp_path, ports), clean)


@pytest.mark.parametrize("static_voters", [False, True], ids=["dynamic-quorum", "static-voters"])
@pytest.mark.parametrize("clean", [True, False], ids=["stop", "kill-9"])
def test_apache_then_ottla_then_apache(tmp_path: Path, clean: bool, static_voters: bool) -> None:
    ports = free_ports(2)
    first = apache(tmp_path, ports, static_voters=static_voters)
    swap(first, ottla(tmp_path, ports), clean)
