"""What ten thousand rules and quotas cost a request, and a hundred changes of rules a second the loop."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Final

from tests.interop.process import ServerProcess
from tests.interop.scripts import acls
from tests.interop.scripts.entities import encode_request
from tests.interop.secured import SecureNode

from bench.frames import batch_of, fetch_frame, fetch_sizes, produce_error, produce_frame
from bench.load import connection, run_load
from bench.raw import KB, KEPT, WARM_UP, Load
from bench.report import Report, Row
from bench.rounds import in_rounds
from bench.security.nodes import CREATE, READ, USER, both, create_quotas, create_rules, many_rules, node, rule
from bench.servers import create_topic, now_ms
from bench.stalls import light_load

RULES: Final = 10_000
QUICK_RULES: Final = 2_000
AIM, OWN_AIM, STALL_AIM_MS = 0.7, 1.05, 5.0
CHANGES_A_SECOND: Final = 100
PRODUCE = Load("produce 1 record of 100 B", 1, 100, 100, 10_000, WARM_UP, AIM)
FETCH = Load("fetch 20 KB", 1, 20 * KB, 1000, 8000, WARM_UP, AIM)
# Nobody is held by them, everybody is counted.
PLENTY = {"producer_byte_rate": 1e12, "consumer_byte_rate": 1e12, "request_percentage": 1e6}
WITHOUT: dict[str, object] = {"authorizer.class.name": None, "super.users": None}


def rules(report: Report, where: Path, quick: bool = False) -> None:
    """Requests of a user with rules and quotas, among thousands of others'; a third node has neither."""
    count = QUICK_RULES if quick else RULES
    title = f"{count:,} rules and quotas"
    with (
        both(where, "SASL_PLAINTEXT") as servers,
        node("ottla", where, "SASL_PLAINTEXT", WITHOUT, "without") as other,
    ):
        everybody: dict[str, ServerProcess] = {**servers, "without": other[1]}
        topics = {load.name: load.name.replace(" ", "-") for load in (PRODUCE, FETCH)}
        for server in everybody.values():
            for topic in topics.values():
                create_topic(server, topic, 1, **KEPT)
        for server in servers.values():
            assert isinstance(server, SecureNode)
            create_rules(server, many_rules(count, topics.values()))
            create_quotas(server, {**{f"app-{n}": PLENTY for n in range(count - 1)}, USER: PLENTY})
        for server in everybody.values():
            assert isinstance(server, SecureNode)
            server.connects_as = USER
        for load in (PRODUCE, FETCH):
            topic = topics[load.name]
            data = batch_of(load.size_bytes, load.record_bytes, now_ms())
            write = produce_frame(topic, {0: data})
            frame = write if load is PRODUCE else fetch_frame(topic, 0, 0, len(data))
            for kind, server in everybody.items():
                with connection(server) as link:
                    error = produce_error(link.ask(write))
                    assert error == 0, f"{kind} refuses the batch: error {error}"
                    if load is FETCH:
                        found = fetch_sizes(link.ask(frame))
                        assert found == (0, len(data)), f"{kind} answers with {found}"
            costs = in_rounds(
                everybody,
                lambda kind, f=frame, n=load.count: run_load(everybody[kind], f, n, len(f)),
                load.warm_up,
                quick=quick,
            )
            apache, ottla, without = (costs[kind].warm.cpu_us for kind in ("apache", "ottla", "without"))
            report.add(Row(f"{title}, {load.name}: broker CPU", "us/request", apache, ottla, AIM))
            note = "beside our own without authorizer and quotas"
            report.add(Row(f"{title}, {load.name}: ours", "us/request", without, ottla, OWN_AIM, note=note))


def changes(report: Report, where: Path, quick: bool = False) -> None:
    """A hundred rules made or taken away a second, among ten thousand, beside a light load; an idle node beside it."""
    count, seconds = (QUICK_RULES, 3) if quick else (RULES, 30)
    loaded, idle = (node("ottla", where, "SASL_PLAINTEXT", name=name) for name in ("loaded", "idle"))
    loaded.watch_stalls = idle.watch_stalls = True
    with loaded:
        server = loaded[1]
        # Whoever makes the light load makes its topic too.
        create_rules(server, [rule(USER, "light", CREATE), *many_rules(count - 1, ["light"])])
    # Started anew: making ten thousand rules is not what is watched.
    with idle, loaded:
        server = loaded[1]
        create_topic(server, "light")
        server.connects_as = USER
        with light_load(server):
            done = _change(server, seconds)
    found, still = loaded[1].stalls()[-1], idle[1].stalls()[-1]
    note = (
        f"p99.9 {found['p999_ms']:.1f}; own longest {found['own_max_ms']:.1f}, computing {found['cpu_max_ms']:.1f}; "
        f"idle node {still['max_ms']:.1f}, computing {still['cpu_max_ms']:.1f}; "
        f"{done / seconds:.0f} changes a second, {count:,} rules"
    )
    name = f"stall, longest: {CHANGES_A_SECOND} rules change a second"
    report.add(Row(name, "ms", None, found["max_ms"], STALL_AIM_MS, absolute=True, note=note))


def _change(server: SecureNode, seconds: float) -> int:
    """Rules of somebody else come and go at the rate; how many changes that were."""
    with server.client() as admin:
        began = time.perf_counter()
        number = 0
        while number < CHANGES_A_SECOND * seconds:
            due = began + number / CHANGES_A_SECOND
            time.sleep(max(0.0, due - time.perf_counter()))  # pace
            name, whom = f"changing-{number // 2}", f"User:changing-{number // 2}"
            if number % 2 == 0:
                body = {"creations": [rule(f"changing-{number // 2}", name, READ)]}
                request = encode_request(30, 3, body)
            else:
                request = encode_request(31, 3, {"filters": [acls.matching(name, principal_filter=whom)]})
            admin.send(request)
            admin.receive()
            number += 1
    return number
