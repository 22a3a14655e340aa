"""The audit log: lines, floods, bounds, files that are put aside, and a disk that does not take them."""

import json
import logging
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ottla.config.broker import BrokerConfig
from ottla.config.errors import ConfigError
from ottla.security import audit
from ottla.security.acls import AclOperation, ResourceType
from ottla.security.audit import AuditFile, AuditLog, open_audit_log
from ottla.security.principal import KafkaPrincipal

ALICE = KafkaPrincipal("User", "alice")
NOW_MS = 1_700_000_000_123


class Lines:
    """A sink that keeps what it is given, or fails."""

    def __init__(self) -> None:
        self.data = b""
        self.error: Exception | None = None
        self.wait: threading.Event | None = None
        self.closed = False

    def write(self, data: bytes) -> None:
        if self.wait is not None:
            assert self.wait.wait(30)
        if self.error is not None:
            raise self.error
        self.data += data

    def close(self) -> None:
        self.closed = True

    @property
    def all(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.data.splitlines()]


class World:
    """An audit log whose windows the test ends."""

    def __init__(self, **more: Any) -> None:
        self.sink = Lines()
        self.now_ms = NOW_MS
        self.timers: list[tuple[float, Callable[[], None]]] = []
        self.log = AuditLog(
            self.sink,
            node_id=7,
            now_ms=lambda: self.now_ms,
            call_later=lambda delay, call: self.timers.append((delay, call)),
            **more,
        )

    def end_window(self) -> None:
        timers, self.timers = self.timers, []
        for _, call in timers:
            call()

    def close(self) -> list[dict[str, Any]]:
        self.log.close()
        assert self.sink.closed
        return self.sink.all

    def denied(self, name: str = "orders", principal: KafkaPrincipal = ALICE, why: str = "no rule") -> None:
        asked = (principal, "10.0.0.9", AclOperation.WRITE, ResourceType.TOPIC, name)
        self.log.denied(*asked, api="Produce", why=lambda: why)

    def login(self, principal: KafkaPrincipal | None = ALICE, address: str = "10.0.0.9", **more: Any) -> None:
        self.log.login(principal, mechanism="PLAIN", listener="SASL", address=address, **more)


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    yield made
    made.log.close()


def test_a_login_is_a_line(world: World) -> None:
    world.login(KafkaPrincipal("User", "alice", True), "::ffff:10.0.0.9", again=True)
    world.login(None, why="wrong password or unknown user 'bob'")
    assert world.close() == [
        {
            "time": "2023-11-14T22:13:20.123Z",
            "node": 7,
            "event": "login",
            "result": "ok",
            "principal": "User:alice",
            "mechanism": "PLAIN",
            "listener": "SASL",
            "address": "10.0.0.9",
            "token": True,
            "reauthentication": True,
        },
        {
            "time": "2023-11-14T22:13:20.123Z",
            "node": 7,
            "event": "login",
            "result": "failed",
            "principal": None,
            "mechanism": "PLAIN",
            "listener": "SASL",
            "address": "10.0.0.9",
            "why": "wrong password or unknown user 'bob'",
        },
    ]


def test_a_flood_is_two_lines(world: World) -> None:
    for _ in range(1000):
        world.denied()
        world.now_ms += 1
    world.denied("others")
    ((delay_s, _),) = world.timers
    assert delay_s == audit.WINDOW_S
    world.end_window()
    world.denied()  # in the next window it is told again
    lines = world.close()
    assert [(line["resource"], line.get("repeated")) for line in lines] == [
        ("orders", None),
        ("others", None),
        ("orders", 999),
        ("orders", None),
    ]
    assert lines[0]["why"] == "no rule"
    assert (lines[2]["since"], lines[2]["time"]) == ("2023-11-14T22:13:20.123Z", "2023-11-14T22:13:21.122Z")


def test_nobody_waits_for_a_window_in_which_nothing_happens(world: World) -> None:
    world.denied()
    world.end_window()
    assert world.timers == []
    world.denied()
    assert len(world.timers) == 1


def test_what_is_counted_when_the_node_stops_is_told(world: World) -> None:
    world.denied()
    world.denied()
    assert [line.get("repeated") for line in world.close()] == [None, 1]


def test_why_is_asked_once_a_window(world: World) -> None:
    asked: list[int] = []
    for _ in range(5):
        who = (ALICE, "10.0.0.9", AclOperation.READ, ResourceType.GROUP, "g")
        world.log.denied(*who, api="Heartbeat", why=lambda: f"{asked.append(1)}")
    assert len(asked) == 1


def test_too_many_names_are_counted_together(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit, "MAX_TOLD_APART", 10)
    for number in range(100):
        world.denied(f"t{number}")
    for number in range(50):
        world.login(None, why=f"unknown user {number}")
    world.end_window()
    lines = world.close()
    assert [line["resource"] for line in lines[:10]] == [f"t{number}" for number in range(10)]
    denials, logins = (
        [line for line in lines[10:] if line["event"] == event] for event in ("denial", "login")
    )
    assert [(line["resource"], line["various"], line.get("repeated")) for line in denials] == [
        (None, True, None),
        (None, True, 89),
    ]
    assert [(line["principal"], line["why"], line.get("repeated")) for line in logins] == [
        (None, None, None),
        (None, None, 49),
    ]


def test_one_who_thinks_up_names_does_not_hide_the_others(world: World) -> None:
    for number in range(5000):
        world.denied(f"t{number}")
        world.login(None, why=f"unknown user {number}")
    world.denied("orders", KafkaPrincipal("User", "bob"))
    world.login(address="10.0.0.8")
    world.end_window()
    world.denied("again")  # everybody begins anew
    lines = world.close()
    assert len(lines) == 2 * (audit.MAX_APART_OF_ONE + 2) + 3
    assert sorted(line["repeated"] for line in lines if "repeated" in line) == [4899, 4899]
    assert [line["resource"] for line in lines if line.get("principal") == "User:bob"] == ["orders"]
    assert [line["result"] for line in lines if line["address"] == "10.0.0.8"] == ["ok"]
    assert lines[-1]["resource"] == "again"


def test_changes_that_fail_in_ever_new_ways_are_counted_too(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit, "MAX_TOLD_APART", 10)
    for number in range(100):
        line = {"resource": f"t{number}", "result": "INVALID_TOPIC_EXCEPTION", "details": {"n": number}}
        world.log.changed({"api": "CreateTopics", "principal": "User:a"}, lambda line=line: [line], 1)  # type: ignore[misc]
    lines = world.close()
    assert len(lines) == 12
    assert (lines[-1]["resource"], lines[-1]["various"], lines[-1]["repeated"]) == (None, True, 89)


def test_whoever_fails_under_ever_new_names_fills_nothing(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit, "MAX_TOLD_APART", 10)
    for number in range(100):
        fields = {"api": "CreateTopics", "principal": f"User:{number % 50}", "client_id": f"c{number}"}
        world.log.changed(fields, lambda: [{"resource": "t", "result": "INVALID_REQUEST"}], 1)
    lines = world.close()
    told = [line for line in lines if line["event"] == "change" and "repeated" not in line]
    assert len(told) == 20
    counted = sum(line["repeated"] for line in lines if "repeated" in line)
    assert counted + sum(line["count"] for line in lines if line["event"] == "lost") == 80


def test_what_is_kept_of_events_is_small(world: World) -> None:
    details = {"configs": {"key": ["x" * 100_000] * 10}}
    for _ in range(2):
        line = {"resource": "t" * 30_000, "result": "INVALID_CONFIG", "details": details}
        world.log.changed({"api": "CreateTopics"}, lambda line=line: [line], 1)  # type: ignore[misc]
        world.denied("n" * 30_000)
    (kept,) = world.log._window._by_key.values()
    assert len(kept.fields["resource"]) == audit.MAX_TEXT_LENGTH
    lines = world.close()
    repeated = [line for line in lines if "repeated" in line]
    assert {(line["event"], len(line["resource"]), line.get("details")) for line in repeated} == {
        ("change", audit.MAX_TEXT_LENGTH, None),
        ("denial", audit.MAX_TEXT_LENGTH, None),
    }


def test_what_is_kept_of_a_login_that_failed_is_small(world: World) -> None:
    for number in range(2):
        world.login(None, why=f"it asks for SASL mechanism {'m' * 30_000}{number}")
    (kept,) = world.log._window._by_key.items()
    assert len(repr(kept)) < 3 * audit.MAX_TEXT_LENGTH
    first, repeated = world.close()
    assert (first["why"], repeated["repeated"]) == (repeated["why"], 1)


def test_who_fails_in_many_ways_does_not_hide_how_others_fail(world: World) -> None:
    for number in range(1000):
        line = {"resource": f"t{number}", "result": "INVALID_TOPIC_EXCEPTION", "details": {}}
        world.log.changed({"api": "CreateTopics", "principal": "User:a"}, lambda line=line: [line], 1)  # type: ignore[misc]
    world.log.changed({"api": "CreateTopics", "principal": "User:b"}, lambda line=line: [line], 1)  # type: ignore[misc]
    lines = world.close()
    assert len(lines) == audit.MAX_APART_OF_ONE + 3
    assert [line["resource"] for line in lines if line["principal"] == "User:b"] == ["t999"]


def test_numbers_that_json_does_not_know(world: World) -> None:
    details = {"quotas": {"a": float("nan"), "b": float("-inf"), "c": 1.5}}
    world.log.changed({"api": "AlterClientQuotas"}, lambda: [{"result": "NONE", "details": details}], 1)
    (line,) = world.close()
    assert line["details"] == {"quotas": {"a": "nan", "b": "-inf", "c": 1.5}}
    assert b"NaN" not in world.sink.data


def test_what_even_so_is_too_much_is_lost_and_counted(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit, "MAX_TOLD_APART", 10)
    for number in range(100):  # of as many addresses
        world.login(address=f"10.0.1.{number}")
    lines = world.close()
    assert len([line for line in lines if line["event"] == "login"]) == 20
    assert sum(line["count"] for line in lines if line["event"] == "lost") == 80


def test_the_loop_does_not_wait_for_the_disk(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit, "MAX_QUEUED", 100)
    world.sink.wait = threading.Event()
    for number in range(10_000):
        world.denied(principal=KafkaPrincipal("User", str(number)))
    world.sink.wait.set()
    lines = world.close()
    told = [line for line in lines if line["event"] == "denial"]
    # Those that the thread had taken when the disk stopped it come on top of what the queue holds.
    assert 100 <= len(told) <= 300
    assert sum(line["count"] for line in lines if line["event"] == "lost") == 10_000 - len(told)


def test_a_large_change_weighs_what_it_names(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit, "MAX_QUEUED", 100)
    world.log.changed({"api": "CreateTopics"}, lambda: [{"resource": "a", "result": "NONE"}], 101)
    world.log.changed({"api": "CreateTopics"}, lambda: [{"resource": "b", "result": "NONE"}], 100)
    lines = world.close()
    assert [line.get("resource") for line in lines if line["event"] == "change"] == ["b"]
    assert sum(line["count"] for line in lines if line["event"] == "lost") == 1


def test_changes_that_are_made_are_all_told_and_those_that_fail_are_counted(world: World) -> None:
    for result in ("NONE", "NONE", "TOPIC_ALREADY_EXISTS", "TOPIC_ALREADY_EXISTS", "TOPIC_ALREADY_EXISTS"):
        line = {"resource": "t", "result": result, "details": {"configs": {"a": ["b"]}}}
        world.log.changed({"api": "CreateTopics", "principal": "User:a"}, lambda line=line: [line], 1)  # type: ignore[misc]
    lines = world.close()
    assert [(line["result"], line.get("repeated")) for line in lines] == [
        ("NONE", None),
        ("NONE", None),
        ("TOPIC_ALREADY_EXISTS", None),
        ("TOPIC_ALREADY_EXISTS", 2),
    ]


def test_an_event_that_cannot_be_described_is_lost_alone(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    def broken() -> list[dict[str, Any]]:
        raise RuntimeError("a bug")

    world.log.changed({"api": "CreateTopics"}, broken, 1)
    world.login()
    lines = world.close()
    assert sorted(line["event"] for line in lines) == ["login", "lost"]
    assert "a bug" in caplog.text


def test_a_disk_that_is_full_is_said_once_and_its_lines_are_counted(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR)
    world.sink.error = OSError(28, "No space left on device")
    before = threading.Event()

    def seen() -> list[dict[str, Any]]:
        before.set()
        return [{"result": "NONE"}]

    world.login()
    world.log.changed({"api": "CreateTopics"}, seen, 1)
    assert before.wait(30)
    world.log.changed({"api": "CreateTopics"}, list, 1)
    while world.log._writer._unwritten < 2:
        assert world.log._thread.is_alive()
    world.sink.error = None
    world.login(KafkaPrincipal("User", "bob"))
    lines = world.close()
    assert next(line for line in lines if line["event"] == "login")["principal"] == "User:bob"
    assert sum(line["count"] for line in lines if line["event"] == "lost") == 2
    assert caplog.text.count("No space left") == 1


def test_a_stranger_cannot_write_lines_of_its_own(world: World) -> None:
    world.login(KafkaPrincipal("User", 'x"}\n{"event":"login","result":"ok"'), why="\x1b[2J" + "é" * 5000)
    data = world.sink
    (line,) = world.close()
    assert data.data.count(b"\n") == 1
    assert data.data.isascii()
    assert len(line["why"]) == audit.MAX_TEXT_LENGTH


def test_only_what_is_wanted_is_told() -> None:
    world = World(kinds=["changes"])
    world.login()
    world.denied()
    assert world.log.changes
    assert not world.log.logins
    world.log.changed({"api": "DeleteTopics"}, lambda: [{"result": "NONE"}], 1)
    assert [line["event"] for line in world.close()] == ["change"]


def test_nothing_is_taken_after_the_end(world: World) -> None:
    world.close()
    world.login()
    world.log.close()
    assert world.sink.all == []


# ---- the file ---------------------------------------------------------------------------------------------------


def test_a_file_is_put_aside_when_it_is_large(tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    file = AuditFile(str(path), 100, 2)
    for number in range(5):
        file.write(b"%d" % number * 60 + b"\n")
    file.close()
    found = {each.name: each.read_bytes()[:1] for each in tmp_path.iterdir()}
    assert found == {"audit.log": b"4", "audit.log.1": b"3", "audit.log.2": b"2"}
    assert path.stat().st_mode & 0o777 == 0o600


def test_without_backups_the_file_begins_anew(tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    file = AuditFile(str(path), 100, 0)
    file.write(b"a" * 90 + b"\n")
    file.write(b"b" * 90 + b"\n")
    file.close()
    assert [each.name for each in tmp_path.iterdir()] == ["audit.log"]
    assert path.read_bytes() == b"b" * 90 + b"\n"


def test_a_file_goes_on_where_it_ended_and_lets_others_move_it(tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    path.write_bytes(b"before\n")
    file = AuditFile(str(path), 1000, 1)
    file.write(b"first\n")
    path.rename(tmp_path / "moved")
    file.write(b"second\n")
    file.close()
    assert (tmp_path / "moved").read_bytes() == b"before\nfirst\n"
    assert path.read_bytes() == b"second\n"


def test_half_a_line_of_a_process_that_was_killed(tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    path.write_bytes(b'{"a":1}\n{"b"')
    file = AuditFile(str(path), 1000, 1)
    file.write(b'{"c":3}\n')
    file.write(b'{"d":4}\n')
    file.close()
    assert path.read_bytes() == b'{"a":1}\n{"b"\n{"c":3}\n{"d":4}\n'


def test_half_a_line_does_not_spoil_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "audit.log"
    file = AuditFile(str(path), 1000, 1)
    real = os.write
    calls: list[int] = []

    def half(fd: int, data: bytes) -> int:
        calls.append(fd)
        if len(calls) == 1:
            return real(fd, bytes(data)[:3])
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(audit.os, "write", half)
        with pytest.raises(OSError, match="No space"):
            file.write(b'{"a":1}\n')
    file.write(b'{"b":2}\n')
    file.close()
    assert path.read_bytes() == b'{"a\n{"b":2}\n'


def test_what_was_not_begun_leaves_no_empty_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "audit.log"
    file = AuditFile(str(path), 1000, 1)
    file.write(b'{"a":1}\n')

    def full(fd: int, data: bytes) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(audit.os, "write", full)
        for _ in range(3):
            with pytest.raises(OSError, match="No space"):
                file.write(b'{"b":2}\n')
    file.write(b'{"c":3}\n')
    file.close()
    assert path.read_bytes() == b'{"a":1}\n{"c":3}\n'


def test_a_file_that_cannot_be_put_aside_grows_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "audit.log"
    file = AuditFile(str(path), 100, 1)

    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    with monkeypatch.context() as patched:
        patched.setattr(audit.os, "replace", refuse)
        for _ in range(5):
            file.write(b"x" * 49 + b"\n")
    assert path.stat().st_size == 250
    assert caplog.text.count("cannot be put aside") == 2  # at 100, and at 200
    file.write(b"y" * 59 + b"\n")
    file.close()
    assert path.read_bytes() == b"y" * 59 + b"\n"


def test_what_is_no_file_stays_where_it_is(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    reading = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    file = AuditFile(str(path), 10, 1)
    file.write(b"x" * 50 + b"\n")
    file.write(b"y" * 50 + b"\n")
    file.close()
    assert len(os.read(reading, 1000)) == 102
    os.close(reading)
    assert [each.name for each in tmp_path.iterdir()] == ["pipe"]


def settings(**more: Any) -> dict[str, Any]:
    given = {"node.id": 1, "log.dirs": "/tmp/none", **{k.replace("__", "."): v for k, v in more.items()}}
    return BrokerConfig.of(given).values


def test_the_settings_make_it(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    for where in (str(tmp_path / "a.log"), "stdout"):
        values = settings(ottla__audit__log=where, ottla__audit__events="logins")
        made = open_audit_log(values, node_id=1, now_ms=lambda: 0, call_later=lambda *_: None)
        assert (made.logins, made.denials, made.changes) == (True, False, False)
        made.login(ALICE, mechanism="PLAIN", listener="L", address="127.0.0.1")
        made.close()
    assert json.loads((tmp_path / "a.log").read_text())["time"] == "1970-01-01T00:00:00.000Z"
    assert json.loads(capfd.readouterr().out)["principal"] == "User:alice"


def test_a_place_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    values = settings(ottla__audit__log=str(tmp_path / "missing" / "a.log"))
    with pytest.raises(ConfigError, match=r"audit log .*missing/a.log cannot be written: No such file"):
        open_audit_log(values, node_id=1, now_ms=lambda: 0, call_later=lambda *_: None)


def test_unknown_events_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"audit\.events"):
        settings(ottla__audit__events="logins,everything")
