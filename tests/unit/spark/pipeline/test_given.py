"""Parameters and secrets: what a file declares, what a run gives, and every mistake in one line with its place."""

from __future__ import annotations

import os
import pickle
import sys
import textwrap
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from ottla.spark.pipeline import Pipeline, PipelineError, load, param, secret
from ottla.spark.pipeline.given import (
    MAX_SECRET_BYTES,
    NOTHING,
    Given,
    Secrets,
    Source,
    environment,
    find_secrets,
    param_file,
    revealed,
    shown,
    without_secret_variables,
)
from ottla.spark.pipeline.parameters import Param, ParameterError, Secret
from ottla.spark.pipeline.run.spec import Spec

HEADER = (
    "from datetime import datetime, timedelta\n"
    "from ottla.spark import delta, iceberg, param, parquet, pipeline, secret, topic\n"
)
INPUT = 'rows=topic("orders", schema="n int")'
PASSWORD = "hunter2-unlikely"


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "orders.py"
    path.write_text(HEADER + textwrap.dedent(text))
    return path


def stream(more: str, *, inputs: str = INPUT, out: str = 'topic("out")', name: str = "copy") -> str:
    return f"@pipeline.stream(out={out})\ndef {name}({inputs}, {more}):\n    return rows\n"


def loaded(
    tmp_path: Path,
    text: str,
    flags: Mapping[str, str] | None = None,
    environ: Mapping[str, str] | None = None,
    file: Source | None = None,
    secrets: Secrets | None = None,
) -> Pipeline:
    sources = [Source("--param", flags or {}), environment(environ or {})]
    sources += [file] if file is not None else []
    return load(written(tmp_path, text), Given(tuple(sources), secrets))


def refused(tmp_path: Path, text: str, **more: Any) -> list[str]:
    with pytest.raises(PipelineError) as caught:
        loaded(tmp_path, text, **more)
    return [str(problem) for problem in caught.value.problems]


# -- parameters -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (int, " -7 ", -7),
        (float, "2.5", 2.5),
        (str, " as it is ", " as it is "),
        (bool, "True", True),
        (bool, "no", False),
        (datetime, "2026-11-01T00:00", datetime(2026, 11, 1, tzinfo=UTC)),
        (datetime, "2026-11-01T00:00+02:00", datetime.fromisoformat("2026-11-01T00:00+02:00")),
        (timedelta, "10 minutes", timedelta(minutes=10)),
        (timedelta, "1.5h", timedelta(hours=1.5)),
        (timedelta, "20 ms", timedelta(milliseconds=20)),
        (timedelta, "3 days", timedelta(days=3)),
    ],
)
def test_text_becomes_a_value_of_the_type(kind: Any, text: str, value: Any) -> None:
    assert Param(kind).of(text) == value


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (int, "5.0"),
        (int, "9" * 5000),
        (float, "nan"),
        (bool, "maybe"),
        (datetime, "tomorrow"),
        (timedelta, "10"),
        (timedelta, "999999999999999 days"),
    ],
)
def test_text_that_is_none_of_the_type_is_one_short_line(kind: Any, text: str) -> None:
    with pytest.raises(ParameterError, match=f"is no {kind.__name__}") as caught:
        Param(kind).of(text)
    assert len(str(caught.value)) < 200
    assert "\n" not in str(caught.value)


def test_values_come_by_option_then_environment_then_file_and_the_stream_before_all(tmp_path: Path) -> None:
    text = stream("limit=param(int, 5)") + stream("limit=param(int, 5)", name="other")
    file = Source("prod.toml", {"limit": "3"})
    environ = {"OTTLA_PARAM_LIMIT": "4", "OTTLA_PARAM_OTHER_LIMIT": "40"}
    assert loaded(tmp_path, text).values == {"copy.limit": 5, "other.limit": 5}
    assert loaded(tmp_path, text, file=file).values == {"copy.limit": 3, "other.limit": 3}
    found = loaded(tmp_path, text, environ=environ, file=file)
    assert found.values == {"copy.limit": 4, "other.limit": 40}
    found = loaded(tmp_path, text, {"limit": "6", "copy.limit": "7"}, environ, file)
    assert found.values == {"copy.limit": 7, "other.limit": 6}
    # What the runner is told stands for itself: neither its environment nor a file is asked again.
    spec = Spec(str(found.path), "orders", "b:1", "s", "l", "sl", params=found.texts)
    assert load(found.path, spec.given()).values == found.values


def test_parameters_of_views_are_the_views_own(tmp_path: Path) -> None:
    text = f"""
        @pipeline.view
        def recent({INPUT}, since=param(datetime, "2026-01-01T00:00")):
            return rows

        @pipeline.stream(out=topic("out"))
        def copy(recent=recent, span=param(timedelta, "10 minutes")):
            return recent
        """
    values = loaded(tmp_path, text, {"recent.since": "2026-02-01T00:00"}).values
    assert values == {
        "recent.since": datetime(2026, 2, 1, tzinfo=UTC),
        "copy.span": timedelta(minutes=10),
    }
    assert shown(values) == {"recent.since": "2026-02-01T00:00:00+00:00", "copy.span": "0:10:00"}


def test_a_view_and_a_stream_of_one_name_do_not_share_a_value(tmp_path: Path) -> None:
    text = f"""
        @pipeline.view
        def recent({INPUT}, limit=param(int, 5)):
            return rows

        @pipeline.stream(out=topic("out"), name="recent")
        def copy(recent=recent, limit=param(str, "x")):
            return recent
        """
    assert refused(tmp_path, text) == [
        "orders.py:8: copy(limit): there are two parameters recent.limit: name the stream or the view otherwise"
    ]


def test_a_parameter_with_a_name_is_its_value_in_declarations(tmp_path: Path) -> None:
    text = """
        source = param(str, "orders", name="source")
        every = param(str, name="every")

        @pipeline.stream(out=parquet(f"lake/{source}"), trigger=every)
        def copy(rows=topic(source, schema="n int")):
            return rows
        """
    found = loaded(tmp_path, text, {"source": "returns", "every": "10 seconds"})
    assert set(found.topics()) == {"returns"}
    assert found.streams[0].out.path == "lake/returns"
    assert found.streams[0].trigger == "10 seconds"
    assert found.values == {"source": "returns", "every": "10 seconds"}
    assert refused(tmp_path, text, flags={"sourc": "x"}) == [
        "orders.py:5: param 'every': a value is missing: --param every=VALUE, the variable OTTLA_PARAM_EVERY or "
        "--param-file gives one, of the type str",
        "orders.py: --param sourc: there is no such parameter; did you mean 'source'?",
    ]


def test_what_is_missing_unknown_or_of_another_type_is_told_at_once_with_its_place(tmp_path: Path) -> None:
    text = stream('limit=param(int, help="rows a page"), since=param(datetime), flag=param(bool, False)')
    assert refused(
        tmp_path,
        text,
        flags={"flg": "true"},
        environ={"OTTLA_PARAM_SINCE": "soon"},
        file=Source("p.toml", {"flag": "2"}),
    ) == [
        "orders.py:3: copy(limit): a value is missing (rows a page): --param limit=VALUE, the variable "
        "OTTLA_PARAM_LIMIT or --param-file gives one, of the type int",
        "orders.py:3: copy(since): OTTLA_PARAM_SINCE in the environment: 'soon' is no datetime: a time such as "
        "2026-11-01T00:00",
        "orders.py:3: copy(flag): flag in p.toml: '2' is no bool: true or false",
        "orders.py: --param flg: there is no such parameter; did you mean 'flag'?",
    ]


@pytest.mark.parametrize(
    ("declared", "expected"),
    [
        ("limit=param(int, '5')", "orders.py:3: copy(limit): the default '5' is no int"),
        ("limit=param(int, True)", "orders.py:3: copy(limit): the default True is no int"),
        ("limit=param(list)", "orders.py:3: copy(limit): param() takes one of the types int, float,"),
        ("limit=param(timedelta, 'x')", "orders.py:3: copy(limit): 'x' is no timedelta: a time span such as"),
        ("limit=5", "orders.py:3: copy(limit): takes a topic, a table or a view, not int 5"),
        ("limit=param(int, name='a b')", "orders.py:4: param(name='a b'): a name is letters, digits and '_'"),
        (
            "limit=param(int, defalt=5)",
            "orders.py:4: param() has no parameter 'defalt'; did you mean 'default'?",
        ),
    ],
)
def test_a_parameter_that_is_declared_wrongly(tmp_path: Path, declared: str, expected: str) -> None:
    found = refused(tmp_path, stream(declared))
    assert any(problem.startswith(expected) for problem in found), found


def test_a_file_that_fails_for_want_of_a_value_tells_of_the_value_only(tmp_path: Path) -> None:
    text = 'days = param(int, name="days")\nper_day = 24 / days\n' + stream("limit=param(int, 1)")
    (only,) = refused(tmp_path, text)
    assert only.startswith("orders.py:3: param 'days': a value is missing")


def test_who_only_looks_at_the_file_needs_no_values(tmp_path: Path) -> None:
    text = stream('limit=param(int), token=secret("T")')
    found = load(written(tmp_path, text), NOTHING)
    assert (found.values, found.secrets) == ({}, {})


def test_a_decorated_function_is_called_with_the_defaults(tmp_path: Path) -> None:
    text = f"@pipeline.stream(out=topic('out'))\ndef copy({INPUT}, limit=param(float, 5)):\n    return rows, limit\n"
    (copy,) = loaded(tmp_path, text).streams
    assert copy("frame") == ("frame", 5.0)
    assert copy("frame", limit=2) == ("frame", 2)
    (copy,) = load(written(tmp_path, text.replace(", 5)", ")")), NOTHING).streams
    with pytest.raises(TypeError, match=r"copy\(\) needs limit="):
        copy("frame")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("p.toml", 'limit = 5\nday = 2026-11-01\nyes = true\n[copy]\nlimit = 7\nwho = "ada"\n'),
        ("p.json", '{"limit": 5, "day": "2026-11-01", "yes": true, "copy": {"limit": 7, "who": "ada"}}'),
    ],
)
def test_a_file_of_parameters(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    found = param_file(str(tmp_path / name)).values
    assert found == {"limit": "5", "day": "2026-11-01", "yes": "true", "copy.limit": "7", "copy.who": "ada"}


@pytest.mark.parametrize(
    ("name", "data", "words"),
    [
        ("p.toml", b"= 5", "neither TOML nor"),
        ("p.json", b"[1]", "holds no names with values"),
        ("p.json", b"[" * 100_000, "neither TOML nor"),
        ("p.toml", b"\xff", "neither TOML nor"),
        ("p.json", b'{"a": [1]}', "a: takes a number, text, true, false or a time, not list"),
        ("p.json", b'{"a": null}', "a: takes a number, text, true, false or a time, not NoneType"),
        ("p.toml", b"#" * 1_000_001, "larger than 1,000,000 bytes"),
        ("p.json", b'{"a": 1, "b": 2, "a": 3}', "a is there twice"),
        ("p.json", b'{"copy": {"a": 1}, "copy.a": 3}', "copy.a is there twice"),
        ("p.toml", b'"copy.a" = 1\n[copy]\na = 2', "copy.a is there twice"),
    ],
)
def test_a_file_of_parameters_that_is_none(tmp_path: Path, name: str, data: bytes, words: str) -> None:
    path = tmp_path / name
    path.write_bytes(data)
    with pytest.raises(PipelineError, match=words) as caught:
        param_file(str(path))
    assert len(str(caught.value).splitlines()) == 1
    with pytest.raises(PipelineError, match="No such file"):
        param_file(str(tmp_path / "nothing.toml"))


# -- secrets --------------------------------------------------------------------------------------------------------


def test_a_secret_comes_from_the_environment_a_file_a_directory_or_a_command(tmp_path: Path) -> None:
    (tmp_path / "db.password").write_text("of a directory\n")
    (tmp_path / "other").write_text("of a file\r\n")
    command = f"{sys.executable} -c 'import sys; print(sys.argv[1] + \" of a command\")' {{name}}"
    environ = {"OTTLA_SECRET_DB_PASSWORD_FILE": str(tmp_path / "other")}
    assert Secrets({**environ, "OTTLA_SECRET_DB_PASSWORD": "v\n"}).find("db.password") == "v\n"
    assert Secrets(environ, str(tmp_path), command).find("db.password") == "of a file"
    assert Secrets({}, str(tmp_path), command).find("db.password") == "of a directory"
    assert Secrets({}, str(tmp_path / "x"), command).find("db.password") == "db.password of a command"
    assert Secrets({}, str(tmp_path)).find("nothing") is None


def test_a_command_is_run_without_a_shell(tmp_path: Path) -> None:
    made = tmp_path / "made"
    assert Secrets(command=f"echo '$(touch {made})' ; {{name}}").find("A") == f"$(touch {made}) ; A"
    assert not made.exists()


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (f"print({PASSWORD!r}); raise SystemExit(3)", "ended with code 3"),
        ("pass", "is empty"),
        ("print(); print()", "is empty"),
        (f"print('x' * {MAX_SECRET_BYTES + 100_000})", "longer than 65,536 bytes|ended with code"),
        ("import sys; sys.stdout.buffer.write(bytes([255]))", "not UTF-8 text"),
    ],
)
def test_a_command_that_gives_no_secret_is_one_line_without_what_it_said(code: str, words: str) -> None:
    with pytest.raises(ParameterError, match=words) as caught:
        Secrets(command=f'{sys.executable} -c "{code}"').find("A")
    assert PASSWORD not in str(caught.value)
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize(
    ("command", "words"),
    [("no-such-command-here {name}", "No such file"), ("a 'b", "No closing"), (" ", "is empty")],
)
def test_a_command_that_cannot_be_run(command: str, words: str) -> None:
    with pytest.raises(ParameterError, match=words):
        Secrets(command=command).find("A")


def test_a_command_that_never_ends_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ottla.spark.pipeline.given.COMMAND_TIMEOUT_S", 0.1)
    with pytest.raises(ParameterError, match=r"sleep took over 0.1 s"):
        Secrets(command="sleep 1000").find("A")


def test_a_file_that_holds_no_secret(tmp_path: Path) -> None:
    (tmp_path / "large").write_bytes(b"x" * (MAX_SECRET_BYTES + 1))
    (tmp_path / "empty").write_text("\n")
    for name, words in (("large", "longer than"), ("empty", "is empty")):
        with pytest.raises(ParameterError, match=words):
            Secrets({}, str(tmp_path)).find(name)
    with pytest.raises(ParameterError, match=r"OTTLA_SECRET_A_FILE: .*: No such file"):
        Secrets({"OTTLA_SECRET_A_FILE": str(tmp_path / "gone")}).find("A")


def test_all_that_are_missing_are_told_with_their_places(tmp_path: Path) -> None:
    text = stream(
        'token=secret("TOKEN")',
        out='iceberg("a.b", catalog={"type": "rest", "uri": "u", "token": secret("CATALOG")})',
    )
    environ = {"OTTLA_SECRET_TOKN": "x"}
    found = refused(tmp_path, text, secrets=Secrets(environ))
    assert found == [
        "orders.py:3: copy(token): secret('TOKEN') is nowhere: set OTTLA_SECRET_TOKEN or OTTLA_SECRET_TOKEN_FILE, or "
        "give --secrets-dir (a file named TOKEN) or --secret-command; did you mean 'tokn'?",
        "orders.py:3: copy(out): secret('CATALOG') is nowhere: set OTTLA_SECRET_CATALOG or OTTLA_SECRET_CATALOG_FILE, "
        "or give --secrets-dir (a file named CATALOG) or --secret-command",
    ]


def test_each_is_asked_for_once_and_is_in_no_repr(tmp_path: Path) -> None:
    text = stream(
        'token=secret("TOKEN")',
        out='delta("t", options={"secret": secret("TOKEN"), "region": "eu"})',
    )
    asked: list[str] = []

    class Counting(Secrets):
        def find(self, name: str) -> str | None:
            asked.append(name)
            return PASSWORD

    found = loaded(tmp_path, text, secrets=Counting())
    assert asked == ["TOKEN"]
    assert found.secrets == {"TOKEN": PASSWORD}
    sink = found.streams[0].out
    assert revealed(sink.options, found.secrets) == {"secret": PASSWORD, "region": "eu"}
    spec = Spec("f", "n", "b", "s", "l", "sl", secrets=found.secrets)
    for thing in (found, sink, sink.options, found.streams, spec, Secrets({"A": PASSWORD}, None, PASSWORD)):
        assert PASSWORD not in repr(thing)
        assert PASSWORD not in str(thing)
    assert find_secrets(found, spec.given().secrets or Secrets())[0] == found.secrets


def test_a_secret_is_its_name_to_everybody_else() -> None:
    made = secret("TOKEN")
    assert (str(made), repr(made), f"{made}") == ("secret('TOKEN')",) * 3
    again = pickle.loads(pickle.dumps(made))
    assert isinstance(again, Secret)
    assert again.name == "TOKEN"
    for name in ("", "../etc/passwd", "-x", "a b", None):
        with pytest.raises(ParameterError, match="a name is letters"):
            secret(name)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            stream(
                "n=param(int, 1)",
                inputs='rows=topic("orders", schema="n int", options={"ottla.group": secret("A")})',
            ),
            "orders.py:3: copy(rows): options: 'ottla.group' is shown in Spark's plans, so it takes no secret",
        ),
        (
            stream("n=param(int, 1)", out='topic("out", config={"retention.ms": secret("A")})'),
            "orders.py:3: copy(out): config: a topic's configuration is shown to everybody",
        ),
        (
            stream(
                "n=param(int, 1)",
                inputs='rows=topic("orders", schema="n int", format="json", registry="http://h:8081", '
                'registry_options={"bearer.auth.token": secret("A")})',
            ),
            "orders.py:3: copy(rows): registry_options: 'bearer.auth.token' takes no secret()",
        ),
        (
            stream("n=param(int, 1)", out='parquet("out", options={"x": secret("A")})'),
            "orders.py:3: copy(out): options: Spark shows them in its plans, so they take no secret",
        ),
    ],
)
def test_a_secret_where_it_would_be_shown_or_sent_as_its_name_is_refused(
    tmp_path: Path, text: str, expected: str
) -> None:
    found = refused(tmp_path, text)
    assert any(problem.startswith(expected) for problem in found), found


def test_options_that_are_secret_take_one(tmp_path: Path) -> None:
    text = stream(
        "n=param(int, 1)",
        inputs='rows=topic("orders", schema="n int", options={"kafka.sasl.jaas.config": secret("JAAS")})',
    )
    found = loaded(tmp_path, text, secrets=Secrets(known={"JAAS": PASSWORD}))
    assert found.secrets == {"JAAS": PASSWORD}


def test_processes_started_by_a_run_do_not_inherit_secrets() -> None:
    environ = {"OTTLA_SECRET_A": "x", "OTTLA_SECRET_B_FILE": "y", "PATH": os.defpath}
    assert without_secret_variables(environ) == {"PATH": os.defpath}


def test_a_default_without_a_zone_is_the_same_time_as_one_that_is_given() -> None:
    noon = datetime(2026, 1, 1, 12)
    assert param(datetime, noon, name="at") == param(datetime, "2026-01-01T12:00", name="at")
    zoned = datetime.fromisoformat("2026-01-01T12:00+02:00")
    assert param(datetime, zoned, name="at").utcoffset() == timedelta(hours=2)


def test_a_parameter_is_imported_like_any_other_value() -> None:
    assert param(int, 5, name="limit") == 5
    with pytest.raises(ParameterError, match="'limit' has no default"):
        param(int, name="limit")
