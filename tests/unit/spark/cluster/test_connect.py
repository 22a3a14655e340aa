"""What a Spark Connect session is given, and what is refused; the session is one that answers as it is told."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

from ottla.spark.cluster import connect
from ottla.spark.cluster.package import PYTHON, Package
from ottla.spark.cluster.preflight import ExecutorsDiffer, probe

HERE = next(probe(()))
BARE = {
    **HERE,
    "ottla": None,
    "ottla_problem": "ModuleNotFoundError: No module named 'ottla'",
    "kernel": False,
}
NO_PROGRAM = (
    'Job aborted: Lost task 0.3 in stage 0.0 (TID 6) (w7 executor 0): java.io.IOException: Cannot run program "%s" (in '
    'directory "./483b"): error=2, No such file or directory'
)


CONTENTS = {
    "python": "3.11",
    "platform": "linux-x86_64",
    "ottla_sha256": "0a",
    "packages": {"pyarrow": "26.0"},
}
STARTED_WITH = "file:///p/environment.tar.gz#environment,file:///p/pipeline.tar.gz#pipeline"


class Session:
    """What server and executors have, before and after they were sent something."""

    def __init__(
        self, executors: Any, server: Any, executors_then: Any = HERE, server_then: Any = HERE
    ) -> None:
        self.answers = {"executors": (executors, executors_then), "server": (server, server_then)}
        self.sent: list[str] = []
        self.settings: dict[str, str] = {}
        self.archives = ""  # that the server was started with
        self.contents: Any = RuntimeError("no Python there")
        self.registered: list[Any] = []
        self.conf = self.dataSource = self

    def answer(self, whose: str) -> Callable[[Any], Any]:
        def look(_spark: Any) -> Any:
            found = self.answers[whose][bool(self.sent)]
            if isinstance(found, Exception):
                raise found
            return [found]

        return look

    def addArtifacts(self, *paths: str, archive: bool) -> None:
        assert archive
        self.sent += paths

    def get(self, name: str, default: str) -> str:
        return self.archives if name == "spark.archives" else default

    def contents_there(self, _spark: Any) -> str:
        assert self.settings[connect.EXECUTORS_PYTHON] == "../environment/bin/python"
        if isinstance(self.contents, Exception):
            raise self.contents
        return str(self.contents)

    def set(self, name: str, value: str) -> None:
        self.settings[name] = value

    def register(self, source: Any) -> None:
        self.registered.append(source)


@pytest.fixture
def furnish(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., list[str]]:
    def run(session: Session, packs: bool = True) -> list[str]:
        monkeypatch.setattr(connect, "_executors", session.answer("executors"))
        monkeypatch.setattr(connect, "_server", session.answer("server"))
        monkeypatch.setattr(connect, "_contents", session.contents_there)
        package = (lambda: Package(tmp_path / "p", CONTENTS, True)) if packs else None
        return connect.furnish(session, package)  # type: ignore[arg-type]

    return run


def test_nothing_is_sent_where_nothing_is_missing(furnish: Callable[..., list[str]]) -> None:
    session = Session(HERE, {**HERE, "pyspark": "4.2.0"})
    assert furnish(session) == []
    assert not session.sent


def test_executors_that_lack_something_get_the_package(
    furnish: Callable[..., list[str]], tmp_path: Path
) -> None:
    session = Session(BARE, HERE)
    furnish(session)
    assert session.sent == [
        f"{tmp_path}/p/environment.tar.gz#environment",
        f"{tmp_path}/p/pipeline.tar.gz#pipeline",
    ]
    assert session.settings == {connect.EXECUTORS_PYTHON: PYTHON}
    assert not session.registered  # the server has found the source by itself


def test_what_the_server_was_started_with_is_not_sent(
    furnish: Callable[..., list[str]], tmp_path: Path
) -> None:
    session = Session(RuntimeError(NO_PROGRAM % PYTHON), RuntimeError(NO_PROGRAM % PYTHON))
    session.archives = STARTED_WITH
    session.contents = json.dumps({**CONTENTS, "packages": {"pyarrow": "26.0", "deltalake": "1.0"}})
    furnish(session)
    assert session.sent == [
        f"{tmp_path}/p/session.tar.gz#environment",
        f"{tmp_path}/p/pipeline.tar.gz#pipeline",
    ]
    assert session.settings == {connect.EXECUTORS_PYTHON: PYTHON}


@pytest.mark.parametrize(
    ("archives", "contents"),
    [
        ("", json.dumps(CONTENTS)),
        ("file:///opt/other.zip", json.dumps(CONTENTS)),
        (STARTED_WITH, json.dumps({**CONTENTS, "ottla_sha256": "0b"})),
        (STARTED_WITH, json.dumps({**CONTENTS, "packages": {}})),
        (STARTED_WITH, "[" * 100_000),
        (STARTED_WITH, "no JSON"),
        (STARTED_WITH, RuntimeError("no such file")),
    ],
)
def test_an_environment_of_the_servers_that_is_not_ours_is_not_taken_for_it(
    furnish: Callable[..., list[str]], tmp_path: Path, archives: str, contents: Any
) -> None:
    session = Session(BARE, HERE)
    session.archives, session.contents = archives, contents
    furnish(session)
    assert session.sent[0] == f"{tmp_path}/p/environment.tar.gz#environment"
    assert session.settings == {connect.EXECUTORS_PYTHON: PYTHON}


def test_a_server_that_waits_for_an_environment_is_told_of_the_source(
    furnish: Callable[..., list[str]],
) -> None:
    missing = RuntimeError(NO_PROGRAM % PYTHON)
    session = Session(missing, missing)
    furnish(session)
    assert [source.__name__ for source in session.registered] == ["OttlaDataSource"]


def test_a_server_with_a_python_of_its_own_that_lacks_something_is_one_line(
    furnish: Callable[..., list[str]],
) -> None:
    with pytest.raises(ExecutorsDiffer) as refused:
        furnish(Session(BARE, BARE, HERE, BARE))
    (line,) = refused.value.problems
    assert line.startswith("the Spark Connect server: ottla is not there (")
    assert f"start the server with PYSPARK_PYTHON={PYTHON}" in line


def test_a_python_that_the_user_named_is_not_replaced(furnish: Callable[..., list[str]]) -> None:
    session = Session(RuntimeError(NO_PROGRAM % "/nowhere/python3"), HERE)
    with pytest.raises(ExecutorsDiffer) as refused:
        furnish(session, packs=False)
    assert refused.value.problems == [
        "executor on w7: there is no Python at /nowhere/python3: "
        f"name one of Python {HERE['python']} that is there, or none"
    ]
    assert not session.sent


def test_an_error_of_another_kind_stays_what_it_is(furnish: Callable[..., list[str]]) -> None:
    with pytest.raises(RuntimeError, match="no executors"):
        furnish(Session(RuntimeError("no executors"), HERE))


# -- addresses ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("remote", "shown", "hidden"),
    [
        ("sc://h:443", "sc://h:443", []),
        ("sc://h/;use_ssl=true;user_id=ada", "sc://h/;use_ssl=true;user_id=ada", []),
        ("sc://h:443/;token=hush", "sc://h:443", ["hush", "hush"]),
        ("sc://h/;token=hush;user_id=x", "sc://h/;user_id=x", ["hush", "hush"]),
        ("sc://h/;user_id=x;token=h%2fu", "sc://h/;user_id=x", ["h%2fu", "h/u"]),
        (
            "sc://h/;x-api-key=hush;authorization=Bearer%20x",
            "sc://h",
            ["hush", "hush", "Bearer%20x", "Bearer x"],
        ),
        ("sc://h/;token=1234", "sc://h", ["1234", "1234"]),
        # Nothing of a token that was cut in two, or is not where Spark looks for it.
        ("sc://h/;token=hu;sh", "sc://h", ["hu", "hu"]),
        ("sc://h;token=hush", "sc://h", ["hush", "hush"]),
    ],
)
def test_an_address_is_shown_without_its_token(remote: str, shown: str, hidden: list[str]) -> None:
    assert connect.without_token(remote) == shown
    assert connect.hidden_in(remote) == hidden


@pytest.mark.parametrize(
    ("remote", "wanted"),
    [
        ("sc://h", "sc://h/;token=a%2Fb%3D"),
        ("sc://h:1/;user_id=x", "sc://h:1/;user_id=x;token=a%2Fb%3D"),
        ("sc://h/;token=own", "sc://h/;token=own"),
    ],
)
def test_the_environments_token_is_taken_as_spark_takes_it(
    remote: str, wanted: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = pytest.importorskip("pyspark.sql.connect.client.core")
    made = connect.with_token(remote, "a/b=")
    assert made == wanted
    assert connect.with_token(remote, None) == connect.with_token(remote, "") == remote
    monkeypatch.delenv(connect.TOKEN_VARIABLE, raising=False)
    ours = client.DefaultChannelBuilder(made)
    monkeypatch.setenv(connect.TOKEN_VARIABLE, "a/b=")
    sparks = client.DefaultChannelBuilder(remote)
    assert (ours.token, ours.secure, ours.endpoint) == (sparks.token, True, sparks.endpoint)


GOOD = ["sc://h", "sc://h:1", "sc://h:1/", "sc://h/;", "sc://[::1]:2/;a=b", "sc://h/;token=a%3D;user_id=x"]
BAD = {
    "http://h/;token=hush": "is no address of a Spark Connect server",
    "sc://": "is no address",
    "sc://h:port": "is no address",
    "sc://h/path": "is no address",
    "sc://ada:hush@h": "is no address",
    "sc://h?token=hush": "is no address",
    "sc://h;token=hush": "lacks a '/' before its parameters",
    "sc://h/;token=hush=": "has '=' in its token: write it as %3D",
    "sc://h/;token=hush/": "has '/' in its token: write it as %2F",
    "sc://h/;token=hush#": "has '#' in its token: write it as %23",
    "sc://h/;token=a;hush": "has a parameter that is not NAME=VALUE; a ';' within a value is written as %3B",
    "sc://h/;a=b;": "has a parameter that is not NAME=VALUE",
}


@pytest.mark.parametrize("remote", [*GOOD, *BAD])
def test_what_sparks_client_does_not_take_is_said_without_the_token(remote: str) -> None:
    client = pytest.importorskip("pyspark.sql.connect.client.core")
    wrong = connect.wrong_with(remote)
    if remote in GOOD:
        assert wrong is None
        client.DefaultChannelBuilder(remote)
    else:
        assert wrong is not None
        assert BAD[remote] in wrong
        assert "hush" not in wrong
