"""`make chaos MINUTES=10`: clients of our own and librdkafka's on a cluster that is harmed all the time.

Rounds of a few minutes, each with a topic and clients of its own: episodes of faults by chance (tests.chaos.nemesis)
while the clients write, read and commit (tests.chaos.workload). After each episode everything must heal by itself and
be written to again; after each round the checker must find nothing, and the logs of all replicas must be equal.

Nodes live in network namespaces (tests.chaos.namespaces), where packets vanish and the kernel's TCP deals with it. With
`--links` they are behind proxies (tests.support.proxies) instead: that needs no root and no Linux, and links may be
slow as well as cut, but bytes are only held up, never lost.

Ends with 0 if so, with 1 if not (the log and what the nodes have kept stay there), and with 2 where this machine does
not allow namespaces; what is missing is said. A seed gives the same choices again: `make chaos MINUTES=10 SEED=4711`.
"""

from __future__ import annotations

import argparse
import itertools
import os
import random
import shutil
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path

from tests.chaos.namespaces import Namespaced, NotPermitted, in_namespaces
from tests.chaos.nemesis import Nemesis
from tests.chaos.workload import Workload
from tests.support.replicated import Replicated

Say = Callable[[str], None]

PARTITIONS = 3
# A workload is bounded in what it sends, and its history is kept in memory.
ROUND_S = 120.0
WRITES = 5
# Shorter than the defaults, so that a minute has more in it.
SETTINGS = {
    "broker.session.timeout.ms": 6000,
    "broker.heartbeat.interval.ms": 1000,
    "replica.lag.time.max.ms": 6000,
    # A connection through a cut is not told so: this is how soon it is given up.
    "replica.socket.timeout.ms": 5000,
    "controller.socket.timeout.ms": 5000,
}


def main(arguments: Sequence[str]) -> int:
    """Outside: enter the namespaces. Inside: the run itself."""
    parser = argparse.ArgumentParser(prog="make chaos", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--nodes", type=int, default=3, help="nodes that are brokers, and controllers too")
    parser.add_argument("--controllers", type=int, default=0, help="so many nodes that are controllers only")
    parser.add_argument("--links", action="store_true", help="over proxies instead of in namespaces")
    parser.add_argument("--dir", type=Path, default=None, help="where the nodes keep their data")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    try:
        if options.inside or options.links:
            return run(options)
        return in_namespaces("tests.chaos.run", [*arguments, "--inside"])
    except NotPermitted as missing:
        print(
            f"make chaos cannot run here: {missing}\n`make chaos LINKS=1` needs no namespaces",
            file=sys.stderr,
        )
        return 2


def run(options: argparse.Namespace) -> int:
    """Rounds until the time is over; the exit code."""
    seed = random.randrange(2**32) if options.seed is None else options.seed
    where = Path(tempfile.mkdtemp(prefix="ottla-chaos-", dir=options.dir))
    began = time.monotonic()
    with (where / "chaos.log").open("w") as log:

        def say(line: str) -> None:
            text = f"{time.monotonic() - began:8.1f} s  {line}"
            print(text, flush=True)
            print(text, file=log, flush=True)

        say(f"seed {seed}: {options.minutes:g} minutes, in {where}")
        try:
            _rounds(options, where, random.Random(seed), say)
        except NotPermitted:
            shutil.rmtree(where)
            raise
        except Exception:  # noqa: BLE001  whatever it is, the run has failed, and what led to it is kept
            say(f"FAILED, seed {seed}; everything is kept in {where}")
            say(traceback.format_exc())
            return 1
        say("nothing lost, nothing twice, nothing out of order")
    shutil.rmtree(where)
    return 0


def _rounds(options: argparse.Namespace, where: Path, chance: random.Random, say: Say) -> None:
    deadline = time.monotonic() + options.minutes * 60
    kind: type[Replicated] = Replicated if options.links else Namespaced
    with kind(
        where,
        settings=SETTINGS,
        controllers=options.controllers,
        brokers=options.nodes if options.controllers else 0,
        combined=0 if options.controllers else options.nodes,
    ) as cluster:
        nemesis = Nemesis(cluster, chance, say)
        for number in itertools.count(1):
            topic = cluster.create_topic(f"chaos-{number}", PARTITIONS)
            say(f"round {number}")
            with Workload(cluster, topic, PARTITIONS) as load:
                load.wait_for_writes(WRITES)
                until = min(deadline, time.monotonic() + ROUND_S)
                while time.monotonic() < until:
                    nemesis.episode(topic)
                    load.wait_for_writes(WRITES)
            load.verify()
            say(f"round {number}: {load.history.acknowledged():,} acknowledged, the checker finds nothing")
            if time.monotonic() >= deadline:
                return


if __name__ == "__main__":
    code = main(sys.argv[1:])
    sys.stdout.flush()
    # Clients whose cluster has failed take minutes to give up, and nobody waits for them.
    os._exit(code)
