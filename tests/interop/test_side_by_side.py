"""Apache Kafka 4.3.1 and Ottla are asked the same; every field of every answer must be the same.

Both are started with the same settings on two log directories each. A script runs against the reference
first, then against Ottla; ids, clocks and addresses are masked (scripts/masks.py), and what is left must be
equal but for the known differences (scripts/differences.py). With OTTLA_INTEROP_SUBJECT=apache a second
Apache takes Ottla's place: that run must find nothing, which proves the masks.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from tests.interop.apache import ApacheKafka, read_properties
from tests.interop.ottla_node import OttlaNode
from tests.interop.process import HOST, ServerProcess, free_ports, running
from tests.interop.scripts.catalogue import SCRIPTS, SMOKE
from tests.interop.scripts.compare import compare, only_served
from tests.interop.scripts.differences import KNOWN_DIFFERENCES, MOST_KNOWN_DIFFERENCES
from tests.interop.scripts.script import Ranges, Script, api_ranges

pytestmark = pytest.mark.interop

SUBJECT = os.environ.get("OTTLA_INTEROP_SUBJECT", "ottla")
SETTINGS: dict[str, object] = {
    "group.coordinator.rebalance.protocols": "classic,consumer,streams",
    "log.segment.delete.delay.ms": 1000,
    "log.retention.ms": -1,  # the scripts' records are stamped years ago, so that clocks can be told from them
}


@dataclass
class Pair:
    """The two servers, what the reference serves, and what each script has asked so far."""

    reference: ServerProcess
    subject: ServerProcess
    ranges: Ranges
    served: Ranges
    asked: dict[str, set[tuple[str, int, int]]] = field(default_factory=dict)


def server(kind: str, where: Path) -> ServerProcess:
    """A node of either kind with the same settings, in directories of its own."""
    log_dirs = [where / "data", where / "data2"]
    if kind == "apache":
        return ApacheKafka(where / "data", SETTINGS, log_dirs=log_dirs)
    port, controller_port = free_ports(2)
    reference = ApacheKafka(
        where / "data", SETTINGS, log_dirs=log_dirs, port=port, controller_port=controller_port
    )
    return OttlaNode(
        where / "data", reference.settings(), port=port, controller_port=controller_port, log_dirs=log_dirs
    )


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    where = tmp_path_factory.mktemp("side-by-side")
    with running([server("apache", where / "reference"), server(SUBJECT, where / "subject")]) as servers:
        reference, subject = servers
        yield Pair(reference, subject, api_ranges(reference), api_ranges(subject))


def symbols_of(node: ServerProcess) -> dict[str, str]:
    """What this server calls itself, and the name that stands for it in both recordings."""
    properties = read_properties(node.data_dir / "meta.properties")
    second = node.data_dir.with_name("data2")
    return {
        f":{node.port}": "<broker port>",
        f":{node.controller_port}": "<controller port>",
        properties["cluster.id"]: "<cluster>",
        str(second): "<log dir 1>",
        str(node.data_dir): "<log dir 0>",
        f"{HOST}:{node.port}": "<broker>",
        f"{HOST}:{node.controller_port}": "<controller>",
    }


def recording(node: ServerProcess, ranges: Ranges, name: str) -> Script:
    script = Script(node, ranges, symbols_of(node))
    try:
        SCRIPTS[name](script)
    finally:
        script.close()
    return script


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.smoke] if name in SMOKE else []) for name in SCRIPTS]
)
def test_answers_are_the_same(pair: Pair, name: str) -> None:
    reference = only_served(recording(pair.reference, pair.ranges, name).record, pair.served)
    asking = recording(pair.subject, pair.ranges, name)
    pair.asked[name] = asking.asked
    subject = only_served(asking.record, pair.served)
    found = compare(reference, subject)
    assert len(reference) > 0
    assert not found, f"{len(found)} differences in {len(reference)} answers\n" + "\n".join(found[:60])


def test_known_differences_are_few() -> None:
    assert len(KNOWN_DIFFERENCES) <= MOST_KNOWN_DIFFERENCES


def test_every_served_version_is_asked(pair: Pair) -> None:
    """What the subject serves at this stage is what the scripts ask: nothing it advertises goes unseen."""
    asked = set()
    for name in SCRIPTS:
        if name not in pair.asked:
            pair.asked[name] = recording(pair.subject, pair.ranges, name).asked
        asked |= pair.asked[name]
    served = {
        (listener, key, version)
        for listener, keys in pair.served.items()
        for key, (low, high) in keys.items()
        for version in range(low, high + 1)
    }
    assert served <= asked, sorted(served - asked)
