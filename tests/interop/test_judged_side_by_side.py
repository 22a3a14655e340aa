"""Apache Kafka 4.3.1 and Ottla judge the same requests of the same people by the same rules, and answer alike.

Both have SASL, StandardAuthorizer and the users and rules of scripts/rights.py: somebody with no right, with each right
alone, with all rights but one. Every API is asked in every version, of the broker, of the controller and in envelopes
(scripts/judged.py), and every field of every answer must be the same, but for what scripts/masks.py hides. What is
asked is made from the table of server/authorization.py: an API that is new there is asked by itself.

`together` are nodes with both roles. `apart` are a controller and a broker, which has to pass on what is the
controller's: that alone is asked there. With OTTLA_INTEROP_SUBJECT=apache a second Apache takes Ottla's place.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.interop.apache import read_properties
from tests.interop.process import HOST
from tests.interop.scripts import rights
from tests.interop.scripts.compare import compare, only_served
from tests.interop.scripts.judged import (
    API_KEYS,
    JudgedScript,
    ask_all,
    ask_version,
    made_for_asking,
    patterns,
    prepare,
    sessions,
    tokens,
    without_answers,
)
from tests.interop.scripts.script import Ranges, api_ranges
from tests.interop.secured import SecureCluster, SecureNode, Security

from ottla.server import handlers, registry
from ottla.server.authorization import ACCESS
from ottla.server.forwarding import FORWARDABLE
from ottla.server.network.connection import Listener

pytestmark = pytest.mark.interop

SUBJECT = os.environ.get("OTTLA_INTEROP_SUBJECT", "ottla")
HOUR_MS = 3_600_000
SETTINGS: dict[str, object] = {
    "group.coordinator.rebalance.protocols": "classic,consumer,streams",
    "log.retention.ms": -1,
    "delegation.token.secret.key": "known to all nodes",
    # What a group is given must not depend on how soon its members speak again.
    "group.streams.initial.rebalance.delay.ms": 0,
    # Members and connections stay for as long as the questions take.
    "connections.max.idle.ms": HOUR_MS,
    **{f"group.{kind}.{most}session.timeout.ms": HOUR_MS for kind in rights.KINDS for most in ("", "max.")},
}
TOGETHER = {1: "broker,controller"}
APART = {1: "controller", 2: "broker"}
# The cut that CI runs, in the newest version and by those whose rights matter: each kind of resource, each way.
SMOKE = (
    *(("broker", api) for api in ("Produce", "Fetch", "Metadata", "CreateTopics", "OffsetFetch", "EndTxn")),
    *(
        ("broker", api)
        for api in ("DescribeGroups", "ConsumerGroupHeartbeat", "DescribeConfigs", "DescribeAcls")
    ),
    ("controller", "Envelope"),
    ("controller", "BrokerHeartbeat"),
    ("envelope", "CreatePartitions"),
)


def served() -> dict[str, set[int]]:
    """What Ottla serves, by way."""
    handlers.load()
    handlers.load_rest()
    keys = {
        name: {key for key, _, _ in registry.served(listener)}
        for name, listener in (("broker", Listener.BROKER), ("controller", Listener.CONTROLLER))
    }
    return {**keys, "envelope": keys["controller"] & FORWARDABLE}


SERVED = served()


@dataclass
class Judged:
    """One cluster, and the script that asks it; ready to be asked."""

    cluster: SecureCluster
    script: JudgedScript

    def asked(self, what: Callable[[JudgedScript], None]) -> dict[str, object]:
        """What was answered."""
        self.script.record = {}
        self.script.as_admin()
        what(self.script)
        return self.script.record


def symbols_of(node: SecureNode, controller: SecureNode) -> dict[str, str]:
    """What these nodes call themselves, and the name that stands for it in both recordings."""
    return {
        f":{node.port}": "<broker port>",
        f":{controller.controller_port}": "<controller port>",
        read_properties(node.data_dir / "meta.properties")["cluster.id"]: "<cluster>",
        str(node.data_dir): "<log dir>",
        f"{HOST}:{node.port}": "<broker>",
        f"{HOST}:{controller.controller_port}": "<controller>",
    }


@contextlib.contextmanager
def judged(kind: str, where: Path, roles: Mapping[int, str]) -> Iterator[Judged]:
    users = {user.name: f"secret-of-{number}" for number, user in enumerate(rights.everybody())}
    security = Security(where, users)
    nodes = {node_id: (kind, role) for node_id, role in roles.items()}
    # Old versions of Metadata make every topic that they name: where all APIs are asked nothing is made in passing.
    settings = {**SETTINGS, "auto.create.topics.enable": str(len(nodes) > 1).lower()}
    with SecureCluster(where, nodes, security, settings) as cluster:
        controller, broker = cluster[min(nodes)], cluster[max(nodes)]
        symbols = symbols_of(broker, controller)
        script = JudgedScript(broker, ranges_of(broker, controller), symbols, controller)
        try:
            prepare(script)
            yield Judged(cluster, script)
        finally:
            script.close()


def ranges_of(broker: SecureNode, controller: SecureNode) -> Ranges:
    return api_ranges(broker, controller.controller_port)


class Pair:
    """The two sides."""

    def __init__(self, reference: Judged, subject: Judged) -> None:
        self.reference = reference
        self.subject = subject
        self.served = ranges_of(subject.script.node, subject.script.controller)

    def check(self, what: Callable[[JudgedScript], None]) -> None:
        """Both are asked; their answers are the same, and there are some."""
        # By the versions that the reference has.
        self.subject.script.ranges = self.reference.script.ranges
        reference = only_served(self.reference.asked(what), self.served)
        subject = only_served(self.subject.asked(what), self.served)
        found = compare(reference, subject)
        assert len(reference) > 0
        assert not found, f"{len(found)} differences in {len(reference)} answers\n" + "\n".join(found[:60])


def pair_of(tmp_path_factory: pytest.TempPathFactory, roles: dict[int, str]) -> Iterator[Pair]:
    where = tmp_path_factory.mktemp("judged")
    with (
        judged("apache", where / "reference", roles) as reference,
        judged(SUBJECT, where / "subject", roles) as subject,
    ):
        yield Pair(reference, subject)


@pytest.fixture(scope="module")
def together(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    yield from pair_of(tmp_path_factory, TOGETHER)


@pytest.fixture(scope="module")
def apart(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    yield from pair_of(tmp_path_factory, APART)


def questions() -> list[object]:
    """Every API of the table, where it is served."""
    return [
        pytest.param(way, api, id=f"{way}-{api}")
        for way, keys in SERVED.items()
        for api in ACCESS
        if API_KEYS[api] in keys
    ]


@pytest.mark.parametrize(("way", "api"), questions())
def test_answers_are_the_same(together: Pair, way: str, api: str) -> None:
    together.check(lambda s: ask_all(s, way, api))


def _newest(s: JudgedScript) -> None:
    for way, api in SMOKE:
        s.listener = "broker" if way == "broker" else "controller"
        ask_version(s, way, api, s.newest(API_KEYS[api]))


@pytest.mark.smoke
def test_a_cut_of_the_answers_is_the_same(together: Pair) -> None:
    together.check(_newest)


@pytest.mark.parametrize("script", [without_answers, sessions, patterns, tokens])
def test_stories_are_the_same(together: Pair, script: Callable[[JudgedScript], None]) -> None:
    together.check(script)


@pytest.mark.parametrize(
    "api", [api for api in ACCESS if API_KEYS[api] in SERVED["envelope"] & SERVED["broker"]]
)
def test_what_a_broker_passes_on_is_judged_alike(apart: Pair, api: str) -> None:
    together = apart.reference.script
    apart.check(lambda s: ask_version(s, "broker", api, together.ranges["broker"][API_KEYS[api]][1]))


def test_topics_are_made_for_the_same_people(apart: Pair) -> None:
    apart.check(made_for_asking)


def test_everything_that_is_served_is_asked(together: Pair) -> None:
    asked = {API_KEYS[api] for api in ACCESS}
    for listener, ranges in together.reference.script.ranges.items():
        assert together.served[listener].keys() & ranges.keys() <= SERVED[listener] & asked
