"""A Spark Connect session whose server and executors may have nothing but a bare Python: looked at, given the rest.

Two Pythons are behind a session: the executors', and the server's own, which plans sources and runs what is called for
each micro-batch. Both are asked what they have, before a row is read. What lacks something gets the package's archives
as artifacts of the session. Spark unpacks those into a directory of the session, on the server and on every executor
whenever it comes, and starts Python there. So `./environment/bin/python` is the package's: for the executors by a
setting of the session; for the server only if it was started with PYSPARK_PYTHON of that name. One that has Ottla
installed keeps its Python. What Spark starts outside of the session's directory (foreachBatch on the server, reading a
stream among the executors) finds the same name in the server's and the executors' own working directories, if the
server was started in a package's directory with the package's archives. Those are above the session's directory: where
that environment has all of ours, what is sent is a script that leads to it. That matters, because Spark makes a session
of each query, and unpacks what the session has for each of them, on every machine.

Rules: what the server or an executor still lacks then is one line each (preflight), and nothing has been begun. Nothing
is sent where nothing is missing, or where the user has named the executors' Python. An address may have a token in it:
it is shown and kept `without_token`. Owned by the driver's side.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote, urlsplit

from ottla.spark.cluster.connect_server import RETRIES, SCHEME
from ottla.spark.cluster.environment import CONTENTS, MAX_CONTENTS_BYTES, covers
from ottla.spark.cluster.package import ARCHIVES, PYTHON, SESSION_ARCHIVES, Package
from ottla.spark.cluster.preflight import (
    ExecutorsDiffer,
    Remedies,
    as_code,
    compared,
    explained,
    probe,
)
from ottla.spark.secret_settings import is_secret

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# A client does not know how many executors there are: so many tasks see most of a small cluster, and cost little.
TASKS = 16
EXECUTORS_PYTHON = "spark.sql.execution.pyspark.python"
SERVER = "the Spark Connect server"
# As seen from the session's directory, in which Python is started.
SERVERS_ENVIRONMENT = "../environment"
_LOOK = "ottla_look"
# Where Spark's client looks for a token that is not in the address; one in either makes it use TLS.
TOKEN_VARIABLE = "SPARK_CONNECT_AUTHENTICATE_TOKEN"
_TOKEN = "token"
# Parameters that the client does not know are headers of its requests, and some of those say who one is.
_HEADERS = ("authorization", "api-key", "api_key", "apikey")
# What ends a parameter for the client, which then says the whole of it in its complaint.
_ESCAPED = "=/?#"


class _OfExecutors(Remedies):
    """Whoever has named the executors' Python can leave that to the run."""

    @property
    def of_packages(self) -> str:
        if self.packed:
            return super().of_packages
        return f"install the same there, or leave {EXECUTORS_PYTHON} unset: `ottla pipeline run` then brings it along"

    def of_python(self, wanted: str) -> str:
        return (
            super().of_python(wanted)
            if self.packed
            else f"name one of Python {wanted} that is there, or none"
        )


class _OfServer(Remedies):
    """The server's Python is chosen by who starts it."""

    @property
    def of_packages(self) -> str:
        return f"start the server with PYSPARK_PYTHON={PYTHON}, which each run brings along, or install the same there"

    def of_python(self, wanted: str) -> str:
        return f"start the server with PYSPARK_PYTHON={PYTHON} on a machine with Python {wanted}"


def furnish(spark: SparkSession, package: Callable[[], Package] | None) -> list[str]:
    """See that server and executors can run what is sent to them; warnings, or ExecutorsDiffer with what is wrong."""
    lacks, warnings = look_through(spark, packed=False)
    if lacks and package is not None:
        is_server_bare = any(line.startswith(SERVER) for line in lacks)
        send(spark, package())
        lacks, warnings = look_through(spark, packed=True)
        if not lacks and is_server_bare:
            register(spark)
    if lacks:
        raise ExecutorsDiffer(lacks)
    return warnings


def send(spark: SparkSession, package: Package) -> None:
    """The package's archives, and the name of the Python in them; not the environment where it is there already."""
    archives = SESSION_ARCHIVES if has_environment(spark, package) else ARCHIVES
    session: Any = spark  # of Spark Connect, which alone takes archives
    session.addArtifacts(*(str(package.path / part) for part in archives.split(",")), archive=True)
    spark.conf.set(EXECUTORS_PYTHON, PYTHON)


def has_environment(spark: SparkSession, package: Package) -> bool:
    """Whether the server was started with an environment that has all of this package's."""
    try:
        if "#environment" not in (spark.conf.get("spark.archives", "") or ""):
            return False
        spark.conf.set(EXECUTORS_PYTHON, f"{SERVERS_ENVIRONMENT}/bin/python")
        return covers(json.loads(_contents(spark)), package.manifest)
    except Exception:  # noqa: BLE001 - it does not start there, or is none of ours: ours is sent
        return False


def _contents(spark: SparkSession) -> str:
    """What the executors' own environment says of itself: all have the one that the server was started with."""
    from pyspark.sql.functions import udf

    read = as_code(_read)
    read.__defaults__ = (f"{SERVERS_ENVIRONMENT}/{CONTENTS}", MAX_CONTENTS_BYTES)
    ((text,),) = spark.range(0, 1, 1, 1).select(udf(read, "string", useArrow=False)("id")).collect()
    return str(text)


def _read(_id: Any, path: str = "", size: int = 0) -> str:
    with open(path) as file:
        return file.read(size)


def close_session(remote: str, session_id: str) -> None:
    """End the session of a client that has died: what it began runs on, on the server, and keeps what it unpacked."""
    from pyspark.sql.connect.client import SparkConnectClient

    client = SparkConnectClient(with_session(remote, session_id), retry_policy=dict(RETRIES))
    try:
        client.release_session()
    finally:
        client.close()


def with_session(remote: str, session_id: str) -> str:
    """The address of a server, and a session there."""
    return _with(remote, f"session_id={session_id}")


def with_token(remote: str, token: str | None) -> str:
    """The address with a token, unless it has one: as Spark's client takes that of its environment."""
    if not token or _TOKEN in secrets_of(remote):
        return remote
    return _with(remote, f"{_TOKEN}={quote(token, safe='')}")


def _with(remote: str, parameter: str) -> str:
    server, _, more = remote.partition(";")
    return f"{server.rstrip('/')}/;{f'{more};' if more else ''}{parameter}"


def without_token(remote: str) -> str:
    """The address as it may be shown and kept: where the server is, and for whom."""
    server, *parameters = remote.split(";")
    kept = [one for one in parameters if "=" in one and not _is_secret(*_taken_apart(one))]
    return ";".join([server, *kept]) if kept else server.rstrip("/")


def secrets_of(remote: str) -> dict[str, str]:
    """The parameters of an address that are secret, as they stand there."""
    parameters = map(_taken_apart, remote.split(";")[1:])
    return {name: value for name, value in parameters if _is_secret(name, value)}


def hidden_in(remote: str) -> list[str]:
    """The texts that are not to be read anywhere: as they stand in the address, and as they are sent."""
    return [text for value in secrets_of(remote).values() for text in (value, unquote(value))]


def _taken_apart(parameter: str) -> tuple[str, str]:
    name, _, value = parameter.partition("=")
    return name, value


def _is_secret(name: str, value: str) -> bool:
    is_header = any(word in name.lower() for word in _HEADERS)
    return bool(value) and (name == _TOKEN or is_header or is_secret(name, value))


def wrong_with(remote: str) -> str | None:
    """What Spark's client would not take of an address, without repeating what may be secret in it."""
    server, *parameters = remote.split(";")
    if not server.startswith(SCHEME) or not _is_server(server.removeprefix(SCHEME)):
        return "is no address of a Spark Connect server: sc://HOST:PORT, or sc://HOST:PORT/;NAME=VALUE;NAME=VALUE"
    if parameters and not server.endswith("/"):
        return "lacks a '/' before its parameters: sc://HOST:PORT/;NAME=VALUE"
    if parameters == [""]:
        return None
    for name, value in map(_taken_apart, parameters):
        found = next((character for character in _ESCAPED if character in value), None)
        if found is not None:
            return f"has {found!r} in its {name}: write it as {quote(found, safe='')}"
    if not all("=" in one for one in parameters):
        return "has a parameter that is not NAME=VALUE; a ';' within a value is written as %3B"
    return None


def _is_server(place: str) -> bool:
    """A host, which may have a port: Spark's client leaves out all else, or says that it does not take it."""
    try:
        found = urlsplit(f"//{place}")
        _ = found.port
    except ValueError:
        return False
    rest = (found.path.removeprefix("/"), found.query, found.fragment)
    return bool(found.hostname) and "@" not in place and not any(rest)


def register(spark: SparkSession) -> None:
    """The server has looked for sources when it had none; this is where its Python finds ours now."""
    from ottla.spark.source.data_source import OttlaDataSource

    spark.dataSource.register(OttlaDataSource)


def look_through(spark: SparkSession, packed: bool) -> tuple[list[str], list[str]]:
    """What is wrong on the server and among the executors, and what is only slower."""
    problems: list[str] = []
    warnings: list[str] = []
    here = next(probe(()))
    for look, remedies, who in (
        (_executors, _OfExecutors(packed), None),
        (_server, _OfServer(packed), SERVER),
    ):
        try:
            # Spark Connect is for clients of other versions than the server's.
            found = [{**there, "who": who, "pyspark": here["pyspark"]} for there in look(spark)]
        except Exception as error:
            line = explained(str(error), here["python"], remedies, who)
            if line is None:
                raise
            problems.append(line)
        else:
            wrong, slower = compared(here, found, remedies)
            problems += wrong
            warnings += slower
    return problems, warnings


def _executors(spark: SparkSession) -> Iterator[Mapping[str, Any]]:
    """A function without Arrow, which may be what is missing."""
    from pyspark.sql.functions import udf

    look = as_code(_as_text)
    look.__defaults__ = (as_code(probe),)
    frame = spark.range(0, TASKS, 1, TASKS).select(udf(look, "string", useArrow=False)("id"))
    return (json.loads(text) for (text,) in frame.collect())


def _as_text(_id: Any, look: Callable[..., Any] = probe) -> str:
    import json

    return json.dumps(next(look(())))


def _server(spark: SparkSession) -> list[Mapping[str, Any]]:
    """Where sources are planned: one that has no rows, and whose only column's name is the answer."""
    from pyspark.sql.datasource import DataSource

    members = {
        "__module__": "__main__",  # sent whole, for nothing of Ottla may be there
        "name": classmethod(as_code(_name)),
        "schema": as_code(_schema),
        "look": staticmethod(as_code(probe)),
    }
    spark.dataSource.register(type("Look", (DataSource,), members))
    (column,) = spark.read.format(_LOOK).load().columns
    return [json.loads(column)]


def _name(_cls: Any) -> str:
    return "ottla_look"


def _schema(self: Any) -> str:
    import json

    return "`" + json.dumps(next(self.look(()))).replace("`", "'") + "` INT"
