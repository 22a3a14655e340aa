"""Verdicts on schema ids: whoever looks first decides for both queries, whatever the registry says later."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.unit.spark.pipeline.values.test_registry import ID, codec_for, placed, read_at, record, written

from ottla.client.registry import client
from ottla.client.registry.client import RegistryError, RegistryUnavailableError
from ottla.client.registry.framing import frame
from ottla.spark.pipeline.values import registry, verdicts
from ottla.spark.pipeline.values.verdicts import DIRECTORY, Book, Verdicts, verdicts_path
from ottla.testing import Registry

ORDER = record(ID)


@pytest.fixture(autouse=True)
def no_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "UNKNOWN_WAIT_S", 0.0)


@pytest.fixture
def server() -> Iterator[Registry]:
    with Registry() as made:
        yield made


@pytest.fixture
def both(tmp_path: Path) -> Verdicts:
    return Verdicts(str(tmp_path), "orders")


def another_worker() -> None:
    """What a process knows by itself is gone: the files are what is left."""
    registry._decoders.clear()
    verdicts._settled.clear()
    client._clients.clear()


def errors(server: Registry, both: Verdicts | None, *values: bytes, start: int = 0) -> list[str | None]:
    """What one of the queries finds, in a worker that is new."""
    another_worker()
    made = codec_for(server, "avro", schema=ORDER)
    return [row["error"] for row in read_at(made, placed(*values, start=start), both)]


def value(number: int) -> bytes:
    return written(number, ORDER, {"id": 1})


def test_an_id_that_was_unknown_to_the_first_is_so_for_the_second(server: Registry, both: Verdicts) -> None:
    number = 1
    (first,) = errors(server, both, value(number))
    assert first == f"has schema id 1, which is unknown to the registry at {server.url}"
    assert server.register("orders-value", ORDER) == number
    assert errors(server, None, value(number)) == [None], "by itself it would be read"
    again, later = errors(server, both, value(number), value(number))
    assert again == "has schema id 1, which was unknown to the registry when it came"
    assert later is None, "what comes behind it is read"
    assert errors(server, both, value(number)) == [again], "a batch that is replayed"
    made = codec_for(server, "avro", schema=ORDER)
    assert read_at(made, placed(value(number)), both)[0]["error"] == again, "in the same worker, too"
    assert errors(server, both, value(number), start=1) == [None]


def test_an_id_that_was_known_to_the_first_is_never_refused(server: Registry, both: Verdicts) -> None:
    number = server.register("orders-value", ORDER)
    assert errors(server, both, value(number)) == [None]
    server.forget(number)
    with pytest.raises(RegistryUnavailableError, match=r"schema id 1 is unknown to .*, but it was known"):
        errors(server, both, value(number))


def test_it_is_asked_anew_for_records_behind_those_that_were_judged(server: Registry, both: Verdicts) -> None:
    errors(server, both, value(1), start=10)
    assert "unknown" in str(errors(server, both, value(1), start=20)[0])
    server.register("orders-value", ORDER)
    found = errors(server, both, *[value(1)] * 30)
    assert [offset for offset, error in enumerate(found) if error is None] == list(range(21, 30))


def test_a_worker_asks_the_file_no_more_once_an_id_is_settled(
    server: Registry, both: Verdicts, tmp_path: Path
) -> None:
    number = server.register("orders-value", ORDER)
    errors(server, both, value(number))
    made = codec_for(server, "avro", schema=ORDER)
    (tmp_path / DIRECTORY / "orders.json").write_text("{")
    assert read_at(made, placed(value(number)), both)[0]["error"] is None
    another_worker()
    with pytest.raises(RegistryError, match=r"orders\.json cannot be read .*move it away"):
        read_at(made, placed(value(number)), both)


def test_where_the_checkpoint_is_elsewhere_each_judges_for_itself(server: Registry, tmp_path: Path) -> None:
    nowhere = Verdicts(str(tmp_path / "not" / "here"), "orders")
    assert "unknown" in str(errors(server, nowhere, value(1))[0])
    server.register("orders-value", ORDER)
    assert errors(server, nowhere, value(1)) == [None]
    assert list(tmp_path.iterdir()) == []


def test_a_topic_of_nothing_but_garbage_is_one_write_a_batch(
    server: Registry, both: Verdicts, monkeypatch: pytest.MonkeyPatch
) -> None:
    writes = []
    monkeypatch.setattr(verdicts, "replace_file", lambda *given, **more: writes.append(given))
    assert all("is unknown" in str(error) for error in errors(server, both, *map(value, range(1, 50))))
    assert len(writes) == 1


def test_the_longest_name_of_a_topic_is_a_files_name(server: Registry, tmp_path: Path) -> None:
    assert "is unknown" in str(errors(server, Verdicts(str(tmp_path), "t" * 249), value(1))[0])
    (kept,) = (tmp_path / DIRECTORY).iterdir()
    assert Book.of_json(kept.read_bytes()).refused == {1: {0: 0}}


def test_a_registry_that_is_away_leaves_no_verdict(server: Registry, both: Verdicts, tmp_path: Path) -> None:
    server.down = True
    with pytest.raises(RegistryUnavailableError):
        errors(server, both, value(1))
    assert list((tmp_path / DIRECTORY).iterdir()) == []


def test_json_frames_follow_it_too(server: Registry, both: Verdicts) -> None:
    def reasons() -> list[Any]:
        another_worker()
        made = codec_for(server, "json", schema="n bigint")
        check = registry._FrameErrors(registry.JsonReading(made._client), both)
        return check(placed(frame(1), frame(1))).to_pylist()  # type: ignore[no-any-return]

    assert all("unknown" in reason for reason in reasons())
    server.register("orders-value", '{"type": "object"}', "JSON")
    assert all("was unknown to the registry when it came" in reason for reason in reasons())


def test_any_number_of_garbage_ids_is_kept_in_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verdicts, "MAX_REFUSED", 3)
    book = Book()
    for number in range(10):
        book.refuse(number, {0: number})
    assert book.refused == {7: {0: 7}, 8: {0: 8}, 9: {0: 9}}
    assert Book.of_json(book.to_json()).refused == book.refused


@pytest.mark.parametrize(
    ("checkpoint", "path"),
    [
        ("/data/c/s", "/data/c/s"),
        ("file:///data/c", "/data/c"),
        ("file:/data/c", "/data/c"),
        ("hdfs://name/data", ""),
        ("s3a://bucket/data", ""),
        ("relative/c", ""),
    ],
)
def test_a_checkpoint_is_a_path_or_elsewhere(checkpoint: str, path: str) -> None:
    assert verdicts_path(checkpoint) == path
