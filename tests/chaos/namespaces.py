"""A cluster whose nodes live in network namespaces of their own, and the network between them, which can be cut.

    in_namespaces("tests.chaos.run", arguments)     # runs a module where nothing it does to the network leaks

    with Namespaced(where, combined=3) as cluster:  # within it; as tests.support.replicated has it, without proxies
        cluster.links.cut(1, 2)                     # packets between 1 and 2 are dropped, neither end is told
        cluster.links.cut(1, 2, both=False)         # only those from 1 to 2
        cluster.links.heal()

Node n has the address 10.77.n.1 (or 10.77.255.1 for the clients, who live in the namespace of this process), and all
packets pass a namespace with no process in it, the router. There a cut is a rule of policy routing that has the packets
from one address to another vanish. So a connection hears nothing at all, as behind a broken switch: it repeats what it
has said until somebody's patience ends. Nothing here needs netfilter or netem, which a machine may lack.

The process that uses it is the first of its own network, mount and process namespaces: whatever it leaves behind, nodes
included, ends with it. Addresses outside do not exist in there. It needs Linux, `unshare` and `nsenter` (util-linux),
`ip` (iproute2) with policy routing in the kernel, and root or user namespaces that are allowed to everybody.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

from tests.interop.process import ServerDied, is_serving, wait_until
from tests.support.cluster import PATIENCE_S, ClusterNode
from tests.support.proxies import CLIENTS
from tests.support.raw_client import METADATA, RawClient
from tests.support.replicated import Replicated

BROKER_PORT, CONTROLLER_PORT = 9092, 9093
ROUTER: Final = "router"
NETWORK: Final = "10.77.0.0/16"
# The third part of the clients' address. A node's is its id, below this.
CLIENTS_NET: Final = 255
NEEDED: Final = {"unshare": "util-linux", "nsenter": "util-linux", "ip": "iproute2"}
# What `unshare` is asked for: a process that ends takes all its children with it.
ALONE: Final = ("--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc")


class NotPermitted(Exception):
    """This machine does not give us what is needed; the text says what that is."""


def in_namespaces(module: str, arguments: Sequence[str]) -> int:
    """Run a module of Python in namespaces of its own; its exit code. NotPermitted where that cannot be."""
    if sys.platform != "linux":
        raise NotPermitted("network namespaces are Linux's")
    missing = [
        f"`{program}` ({package})" for program, package in NEEDED.items() if shutil.which(program) is None
    ]
    if missing:
        raise NotPermitted(f"not installed: {', '.join(missing)}")
    # Without root, root of a user namespace of one's own does.
    how = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    tried = subprocess.run(["unshare", *how, *ALONE, "true"], capture_output=True, text=True)
    if tried.returncode != 0:
        who = (
            "root"
            if os.geteuid() == 0
            else "a user that is not root (sysctl kernel.unprivileged_userns_clone, user.max_user_namespaces)"
        )
        raise NotPermitted(f"no new namespaces for {who} here: {tried.stderr.strip()}")
    return subprocess.run(["unshare", *how, *ALONE, sys.executable, "-m", module, *arguments]).returncode


def _ip(*words: str) -> None:
    done = subprocess.run(["ip", *words], capture_output=True, text=True)
    if done.returncode != 0:
        raise NotPermitted(f"`ip {' '.join(words)}`: {done.stderr.strip()}")


def address_of(node_id: int) -> str:
    """Of a node, or of CLIENTS."""
    return f"10.77.{CLIENTS_NET if node_id == CLIENTS else node_id}.1"


class Network:
    """The router and what is plugged into it; with the calls of tests.support.proxies.Links that make sense here."""

    def __init__(self, nodes: Iterable[int]) -> None:
        self._cuts: set[tuple[int, int]] = set()
        # Where `ip` keeps names of namespaces: our own, so that they are not seen outside.
        subprocess.run(["mount", "-t", "tmpfs", "tmpfs", "/run"], check=True)
        _ip("link", "set", "lo", "up")
        _ip("netns", "add", ROUTER)
        forward = "echo 1 > /proc/sys/net/ipv4/ip_forward"
        _ip("netns", "exec", ROUTER, "sh", "-c", forward)
        self._plug(CLIENTS, ())
        for node_id in nodes:
            assert 0 < node_id < CLIENTS_NET, node_id
            _ip("netns", "add", f"node-{node_id}")
            self._plug(node_id, ("-n", f"node-{node_id}"))
        # Shows at once whether the kernel has policy routing.
        self.cut(CLIENTS, CLIENTS)
        self.heal()

    def _plug(self, node_id: int, inside: tuple[str, ...]) -> None:
        """A cable from a namespace (of the clients, if none is named) to the router, and the way through it."""
        link, gateway = f"to-{node_id}", address_of(node_id).removesuffix("1") + "254"
        _ip(*inside, "link", "add", "eth0", "type", "veth", "peer", "name", link, "netns", ROUTER)
        _ip("-n", ROUTER, "address", "add", f"{gateway}/24", "dev", link)
        _ip("-n", ROUTER, "link", "set", link, "up")
        _ip(*inside, "address", "add", f"{address_of(node_id)}/24", "dev", "eth0")
        _ip(*inside, "link", "set", "lo", "up")
        _ip(*inside, "link", "set", "eth0", "up")
        _ip(*inside, "route", "add", NETWORK, "via", gateway)

    def cut(self, one: int, other: int, *, both: bool = True) -> None:
        """What `one` sends to `other` vanishes; and the other way, if both."""
        for way in {(one, other), (other, one)} if both else {(one, other)}:
            if way not in self._cuts:
                _ip("-n", ROUTER, "rule", "add", *_rule(way))
                self._cuts.add(way)

    def heal(self) -> None:
        """No packet vanishes any more."""
        for way in list(self._cuts):
            _ip("-n", ROUTER, "rule", "del", *_rule(way))
            self._cuts.remove(way)

    @property
    def is_whole(self) -> bool:
        return not self._cuts

    # What proxies have to do for a process that is dead, a network does by itself.
    def shut(self, node_id: int) -> None: ...
    def reopen(self, node_id: int) -> None: ...
    def close(self) -> None: ...


def _rule(way: tuple[int, int]) -> tuple[str, ...]:
    return ("from", address_of(way[0]), "to", address_of(way[1]), "blackhole")


class NamespacedNode(ClusterNode):
    """A node in its namespace, at an address of its own."""

    def __init__(self, data_dir: Path, node_id: int, role: str, settings: Mapping[str, object]) -> None:
        super().__init__(data_dir, node_id, role, settings)
        self.host = address_of(node_id)
        self.prefix = ("nsenter", f"--net=/run/netns/node-{node_id}", "--")

    def settings(self) -> dict[str, object]:
        listeners = [f"PLAINTEXT://{self.host}:{BROKER_PORT}"] if self.is_broker else []
        listeners += [f"CONTROLLER://{self.host}:{CONTROLLER_PORT}"] if self.is_controller else []
        return {**super().settings(), "listeners": ",".join(listeners)}

    def is_ready(self) -> bool:
        return super().is_ready() and (not self.is_broker or is_serving(self.host, self.port))

    def known_brokers(self) -> set[int]:
        try:
            with RawClient(self, timeout_s=5) as client:
                answer = client.ask(METADATA, 1, {"topics": []})
        except OSError:
            return set()
        return {broker["node_id"] for broker in answer["brokers"]}


class Namespaced(Replicated):
    """A replicated cluster in namespaces; `links` is the network itself."""

    links: Network  # type: ignore[assignment]

    def __init__(
        self,
        where: Path,
        *,
        controllers: int = 0,
        brokers: int = 0,
        combined: int = 0,
        settings: Mapping[str, object] | None = None,
    ) -> None:
        super().__init__(
            where, controllers=controllers, brokers=brokers, combined=combined, settings=settings
        )
        self.links.close()  # nobody goes through proxies
        voters = ",".join(f"{node.node_id}@{node.host}:{CONTROLLER_PORT}" for node in self._controllers())
        for node in self.nodes.values():
            # In a namespace of its own every port is free.
            node.wanted_port = node.port = BROKER_PORT if node.is_broker else 0
            node.controller_port = CONTROLLER_PORT
            del node.overrides["advertised.listeners"]
            node.overrides["controller.quorum.voters"] = voters
        self.links = Network(self.nodes)

    def _controllers(self) -> list[ClusterNode]:
        return [node for node in self.nodes.values() if node.is_controller]

    def make(self, node_id: int, role: str, settings: Mapping[str, object] | None = None) -> ClusterNode:
        data_dir = self.where / f"node-{node_id}"
        node = NamespacedNode(data_dir, node_id, role, {**self._settings, **(settings or {})})
        node.env["CLUSTER_ID"] = self.cluster_id
        return node

    def launch(self, node_id: int) -> None:
        node = self.nodes[node_id]
        node.launch()
        port = CONTROLLER_PORT if node.is_controller else BROKER_PORT

        def is_open() -> bool:
            if not node.is_running():
                raise ServerDied(f"{node.kind} exited with {node.exit_code}\n{node.log_text()[-4000:]}")
            with socket.socket() as sock:
                sock.settimeout(1)
                return sock.connect_ex((node.host, port)) == 0

        wait_until(is_open, PATIENCE_S, f"{node.kind} to listen")

    @property
    def bootstrap_servers(self) -> str:
        return ",".join(node.address for node in self.nodes.values() if node.is_broker)

    @property
    def bootstrap_controllers(self) -> str:
        return ",".join(f"{node.host}:{CONTROLLER_PORT}" for node in self._controllers())
