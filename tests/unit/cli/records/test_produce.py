"""What ottla produce sends, whatever becomes of what it prints."""

import io
import os
import sys
from collections.abc import Callable
from typing import Any, Self

import pytest

from ottla.cli.main import main


class Producer:
    """Takes what is sent."""

    def __init__(self, _settings: dict[str, object]) -> None:
        self.sent: list[tuple[bytes | None, bytes | None]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None: ...

    def send(self, _topic: str, value: bytes | None, key: bytes | None, **_: Any) -> None:
        self.sent.append((key, value))

    def flush(self) -> None: ...


@pytest.fixture
def producers(monkeypatch: pytest.MonkeyPatch) -> list[Producer]:
    made: list[Producer] = []

    def make(settings: dict[str, object]) -> Producer:
        made.append(Producer(settings))
        return made[-1]

    monkeypatch.setattr("ottla.client.blocking.Producer", make)
    return made


@pytest.fixture
def typed(monkeypatch: pytest.MonkeyPatch) -> Callable[[bytes], None]:
    def type_in(data: bytes) -> None:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))

    return type_in


def test_a_key_that_is_no_utf8_is_sent_as_it_is(
    producers: list[Producer], typed: Callable[[bytes], None]
) -> None:
    typed(b"value")
    assert main(["produce", "-t", "t", "-q", "-k", os.fsdecode(b"\xff\x00\xc3")]) == 0
    assert producers[0].sent == [(b"\xff\x00\xc3", b"value")]


def test_all_is_sent_though_nobody_reads_the_copy(
    producers: list[Producer], typed: Callable[[bytes], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    messages = [b"%05d" % number + b"x" * 100 for number in range(1000)]
    typed(b"\n".join(messages))
    reading, writing = os.pipe()
    os.close(reading)
    with open(writing, "w") as out:
        monkeypatch.setattr(sys, "stdout", out)
        assert main(["produce", "-t", "t", "-T"]) == 0
    assert producers[0].sent == [(None, message) for message in messages]
