"""Processor time of the broker for single requests: produce and fetch of several sizes."""

from bench.load import FETCH_LOADS, FETCH_WARM_UP, PRODUCE_LOADS, WARM_UP, Cost, Load, measure, warm_up
from bench.report import Row
from bench.servers import APACHE, OTTLA, SIDES, create_topic, server

# Ottla's processor time divided by Apache's.
AIMS = {
    "produce, 1 record of 100 B": 0.5,
    "produce, 16 KB batch": 0.55,
    "produce, 8 partitions x 16 KB": 0.65,
    "produce, 1 MB batch": 0.65,
    "fetch, 20 KB": 0.5,
    "fetch, 66 KB": 0.5,
    "fetch, 1 MB": 0.5,
}
GIGABYTE = 1e9


def produce() -> list[Row]:
    return _rows({side: _measure(side, PRODUCE_LOADS, fetching=False) for side in SIDES}, PRODUCE_LOADS)


def fetch() -> list[Row]:
    return _rows({side: _measure(side, FETCH_LOADS, fetching=True) for side in SIDES}, FETCH_LOADS)


def _measure(side: str, loads: tuple[Load, ...], *, fetching: bool) -> dict[str, Cost]:
    with server(side) as it:
        create_topic(it)
        warm_up(it, WARM_UP)
        if fetching:
            warm_up(it, FETCH_WARM_UP)
        return {load.name: measure(it, load) for load in loads}


def _rows(costs: dict[str, dict[str, Cost]], loads: tuple[Load, ...]) -> list[Row]:
    rows = []
    for load in loads:
        apache, ottla = costs[APACHE][load.name], costs[OTTLA][load.name]
        note = f"user {ottla.user_us:.0f} + system {ottla.system_us:.0f} us"
        rows.append(Row(load.name, "CPU us/request", apache.cpu_us, ottla.cpu_us, AIMS[load.name], note=note))
    largest = loads[-1]
    each = _bytes(largest)
    per_gb = {side: costs[side][largest.name].cpu_us / 1e6 * GIGABYTE / each for side in SIDES}
    rows.append(Row(f"{largest.name}, per GB", "CPU s/GB", per_gb[APACHE], per_gb[OTTLA]))
    return rows


def _bytes(load: Load) -> int:
    return max(len(load.frame), 1_000_000)
