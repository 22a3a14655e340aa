"""The tables of docs/compatibility.md, from what the broker serves and from the known differences.

    python -m tests.support.compatibility        # writes them into the page

A test holds the page to them, so that it is true at every landing.
"""

from pathlib import Path

from tests.interop.scripts.differences import KNOWN_DIFFERENCES

from ottla.server import handlers
from ottla.server.network.connection import Listener
from ottla.server.registry import ADVERTISED, routes
from ottla.wire.registry import request_class

PAGE = Path(__file__).resolve().parents[2] / "docs" / "compatibility.md"


def api_name(key: int) -> str:
    return request_class(key).__name__.removesuffix("Request")


def api_table() -> str:
    """Every API that is served, with its versions and on which listeners."""
    handlers.load()
    handlers.load_rest()
    broker, controller = routes(Listener.BROKER), routes(Listener.CONTROLLER)
    lines = ["| key | API | versions | broker | controller |", "|---|---|---|---|---|"]
    for key in sorted(broker.keys() | controller.keys()):
        route = broker.get(key) or controller[key]
        marks = ["yes" if key in table else "-" for table in (broker, controller)]
        versions = f"{route.min_version}-{route.max_version}"
        lines.append(f"| {key} | {api_name(key)} | {versions} | {marks[0]} | {marks[1]} |")
    return "\n".join(lines)


def missing_apis() -> str:
    """What 4.3.1 serves and Ottla does not yet."""
    handlers.load()
    handlers.load_rest()
    served = routes(Listener.BROKER).keys() | routes(Listener.CONTROLLER).keys()
    missing = [f"{api_name(key)} ({key})" for key in sorted(ADVERTISED) if key not in served]
    return ", ".join(missing) + "." if missing else "Nothing."


def difference_table() -> str:
    """Where answers differ from Apache Kafka 4.3.1's, and why."""
    if not KNOWN_DIFFERENCES:
        return "None."
    lines = ["| what differs | why |", "|---|---|"]
    lines += [f"| {difference.title} | {difference.reason} |" for difference in KNOWN_DIFFERENCES]
    return "\n".join(lines)


SECTIONS = {"apis": api_table, "missing": missing_apis, "differences": difference_table}


def rendered(page: str) -> str:
    """The page with its tables made anew."""
    for name, render in SECTIONS.items():
        begin, end = f"<!-- {name}: begin -->\n", f"\n<!-- {name}: end -->"
        before, rest = page.split(begin)
        after = rest.split(end)[1]
        page = before + begin + render() + end + after
    return page


if __name__ == "__main__":
    PAGE.write_text(rendered(PAGE.read_text()))
