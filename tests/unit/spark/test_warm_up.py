"""The thread that has Java take its first steps: when it runs, when it ends, and that it is in nobody's way."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from ottla.spark import warm_up
from ottla.spark.session import _is_classic
from ottla.spark.warm_up import WarmUp, warm


class Absent:
    """A Java that has none of the classes."""

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(name)


class Everything:
    """A Java that has them all."""

    def __getattr__(self, name: str) -> Any:
        return Everything()

    def __call__(self, *_: Any) -> Any:
        return Everything()


@pytest.fixture(autouse=True)
def two_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warm_up, "cores", lambda: 2)


def test_what_is_missing_is_left_out_and_named() -> None:
    every = {**warm_up.SPARKS, **warm_up.OTHERS}
    assert warm(Absent(), every) == ["parser", "analyzer", "compiler"]
    assert warm(Everything(), every) == []


def test_it_waits_for_java_and_what_is_sparks_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    there, begun, go_on, end = (threading.Event() for _ in range(4))
    java = object()
    done: list[str] = []

    def sparks(jvm: object) -> None:
        assert jvm is java
        begun.set()
        assert go_on.wait(10)
        done.append("Spark's")

    def other(jvm: object) -> None:
        assert end.wait(10)
        done.append("other")

    monkeypatch.setattr(warm_up, "SPARKS", {"a": sparks})
    monkeypatch.setattr(warm_up, "OTHERS", {"b": other})
    with WarmUp(lambda: java if there.is_set() else None) as found:
        assert not begun.is_set()
        there.set()
        assert begun.wait(10)
        threading.Timer(0.05, go_on.set).start()
    assert done == ["Spark's"], "the session goes on after these, and before the others"
    end.set()
    found._thread.join(10)
    assert done == ["Spark's", "other"]


def test_a_java_that_never_comes_is_not_waited_for() -> None:
    with WarmUp(lambda: None) as found:
        assert found._thread.is_alive()
    found._thread.join(10)
    assert not found._thread.is_alive()


def test_an_error_of_the_start_comes_through() -> None:
    def gone() -> Any:
        raise RuntimeError("no Java")

    with pytest.raises(OSError, match="the start"), WarmUp(gone):
        raise OSError("the start failed")


def test_one_core_is_left_to_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warm_up, "cores", lambda: 1)
    with WarmUp(lambda: pytest.fail("asked for Java")) as found:
        assert found._thread.ident is None


def test_a_client_of_spark_connect_has_no_java_to_warm(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SPARK_REMOTE", "SPARK_CONNECT_MODE_ENABLED", "SPARK_API_MODE", "SPARK_CONNECT_MODE"):
        monkeypatch.delenv(name, raising=False)
    assert _is_classic({})
    assert _is_classic({"spark.api.mode": "Classic"})
    assert not _is_classic({"spark.api.mode": "connect"})
    assert not _is_classic({"spark.remote": "local"})
    monkeypatch.setenv("SPARK_API_MODE", "connect")
    assert not _is_classic({})
    monkeypatch.setenv("SPARK_API_MODE", "classic")
    monkeypatch.setenv("SPARK_REMOTE", "sc://host")
    assert not _is_classic({})
