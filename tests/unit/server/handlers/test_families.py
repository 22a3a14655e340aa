"""The families that a broker imports later say truly which APIs they serve."""

import subprocess
import sys

import pytest

from ottla.server import handlers
from ottla.server.network.connection import Listener
from ottla.server.registry import ADVERTISED, late_route, routes, served


@pytest.mark.parametrize("family", handlers.LATER)
def test_a_later_family_serves_what_it_is_named_for(family: str) -> None:
    handlers.load()
    handlers.load_rest()
    module = f"{handlers.__name__}.{family}"
    found = {
        key
        for key, route in routes(Listener.BROKER).items()
        if module in (getattr(route.handler, "__module__", None), getattr(route.raw, "__module__", None))
    }
    assert found == set(handlers.LATER[family])
    assert not found & routes(Listener.CONTROLLER).keys()


def test_what_is_served_does_not_depend_on_what_is_imported() -> None:
    handlers.load()
    before = served(Listener.BROKER)
    handlers.load_rest()
    assert served(Listener.BROKER) == before
    assert {key for key, _, _ in before} == routes(Listener.BROKER).keys()
    assert all(ADVERTISED[key] == (low, high) for key, low, high in before)


def test_an_api_is_found_when_it_is_first_asked_for() -> None:
    """In a process of its own, where nothing has been imported yet."""
    code = """
import sys
from ottla.server import handlers
from ottla.server.network.connection import Listener
from ottla.server.registry import late_route, routes
handlers.load()
assert "ottla.server.handlers.groups" not in sys.modules
assert 12 not in routes(Listener.BROKER)
route = late_route(Listener.BROKER, 12)
assert route is not None and route.api_key == 12 and routes(Listener.BROKER)[12] is route
assert late_route(Listener.CONTROLLER, 12) is None
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_an_api_that_nobody_serves_stays_unknown() -> None:
    handlers.load()
    assert late_route(Listener.BROKER, 999) is None
