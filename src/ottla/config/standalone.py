"""What a node with few settings is: a cluster of one.

Kafka asks for roles, ids, a controller listener and a quorum, and its defaults of three replicas would leave
the internal topics of a single node without a home. Here the missing settings are filled in; they then count
as set in the static configuration, which is what DescribeConfigs shows. A node that is told of a quorum may be one of
several: its internal topics have Kafka's three replicas unless a setting says otherwise. Pure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.config.definitions import BROKER_KEYS
from ottla.config.listeners import MAX_PORT, listener_name_of, split_endpoint

if TYPE_CHECKING:
    from collections.abc import Mapping

DEFAULT_NODE_ID = 1
LOOPBACK = "127.0.0.1"
CONTROLLER = "CONTROLLER"
DEFAULT_BROKER_LISTENER = f"PLAINTEXT://{LOOPBACK}:9092"

_SECURED = ("SSL", "SASL_PLAINTEXT", "SASL_SSL")

# Kafka's defaults (3, 3, 2, 3, 2) need three brokers.
ALONE = {
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
}

# Kafka's three seconds are there so that the members of a service, started one after the other, are rebalanced once.
# Somebody who tries things out on a node without settings waits for them each time.
UNTOLD = {"group.initial.rebalance.delay.ms": "0"}


def fill_in(given: Mapping[str, str], directory_node_id: int | None = None) -> dict[str, str]:
    """The settings to add to those given so that a node can start."""
    added: dict[str, str] = {}
    if "node.id" not in given and "broker.id" not in given:
        added["node.id"] = str(DEFAULT_NODE_ID if directory_node_id is None else directory_node_id)
    if "process.roles" not in given:
        added["process.roles"] = "broker,controller"
    roles = _words(given.get("process.roles", "broker,controller"))
    if "controller" not in roles:
        return added
    if "broker" in roles and not _names_a_quorum(given):
        added.update({name: text for name, text in ALONE.items() if name not in given})
    if "controller.listener.names" not in given:
        added["controller.listener.names"] = CONTROLLER
    _fill_listeners(given, added, roles)
    _fill_inter_broker(given, added)
    _fill_quorum(given, added)
    if "process.roles" not in given and not _names_a_quorum(given):
        added.update({name: text for name, text in UNTOLD.items() if name not in given})
    return added


def _fill_listeners(given: Mapping[str, str], added: dict[str, str], roles: list[str]) -> None:
    """A controller listener on loopback, beside the broker's, unless the user has placed one."""
    name = _words(given.get("controller.listener.names", CONTROLLER))[:1]
    entries = _words(given["listeners"]) if "listeners" in given else []
    if not entries and "broker" in roles:
        entries = [DEFAULT_BROKER_LISTENER]
    names = [listener_name_of(entry) for entry in entries]
    # Whoever wrote down the roles of this node is held to Kafka's rules; only a gap is filled.
    explicit = "process.roles" in given and "controller.listener.names" in given and "listeners" in given
    if not name or name[0].upper() in names or explicit:
        return
    added["listeners"] = ",".join([*entries, f"{name[0]}://{LOOPBACK}:{_free_port(entries)}"])
    protocols = given.get("listener.security.protocol.map")
    if protocols is None and any(entry in _SECURED for entry in names):
        # Kafka maps a controller listener by itself only where nothing is secured.
        protocols = str(BROKER_KEYS["listener.security.protocol.map"].default)
    if protocols is not None and name[0].upper() not in _names_in_map(protocols):
        added["listener.security.protocol.map"] = f"{protocols},{name[0]}:PLAINTEXT"


def _fill_inter_broker(given: Mapping[str, str], added: dict[str, str]) -> None:
    """A node whose roles are not set has no peers: whichever listener it has will do."""
    decided = {"process.roles", "inter.broker.listener.name", "security.inter.broker.protocol"}
    names = [listener_name_of(entry) for entry in _words(given.get("listeners", ""))]
    names = [name for name in names if name not in _words(given.get("controller.listener.names", CONTROLLER))]
    if names and "PLAINTEXT" not in names and not decided & given.keys():
        added["inter.broker.listener.name"] = names[0]


def _free_port(entries: list[str]) -> int:
    """The port after the broker's, as Kafka's own sample has it; any free one where the broker's is any."""
    ports = [split_endpoint(entry)[2] for entry in entries]
    if not ports or ports[0] <= 0:
        return 0 if ports else 9093
    port = ports[0] + 1
    while port in ports:
        port += 1
    return port if port <= MAX_PORT else 0


def _fill_quorum(given: Mapping[str, str], added: dict[str, str]) -> None:
    """The quorum is found at our own controller listener if nobody says otherwise."""
    if _names_a_quorum(given):
        return
    name = (given.get("controller.listener.names") or CONTROLLER).split(",")[0].strip().upper()
    for entry in _words(added.get("listeners") or given.get("listeners", "")):
        if listener_name_of(entry) == name:
            _, host, port = split_endpoint(entry)
            host = LOOPBACK if host in ("", "0.0.0.0", "::") else host
            shown = f"[{host}]" if ":" in host else host
            added["controller.quorum.bootstrap.servers"] = f"{shown}:{max(port, 0)}"
            return


def _names_a_quorum(given: Mapping[str, str]) -> bool:
    return bool(given.get("controller.quorum.voters") or given.get("controller.quorum.bootstrap.servers"))


def _names_in_map(text: str) -> set[str]:
    return {pair.rpartition(":")[0].strip().upper() for pair in text.split(",")}


def _words(text: str) -> list[str]:
    return [word for word in (part.strip() for part in text.split(",")) if word]
