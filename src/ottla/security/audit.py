"""AuditLog: who logged in, who was denied what and who changed what, as lines of JSON in a file or on standard output.

Ottla's own; Kafka has lines of its authorizer. `ottla.audit.log` turns it on.

Rules: no line has a secret in it; whoever tells of an event names what may be shown. The loop never waits for the disk:
events go through a queue with a bound to a thread that writes, and what finds no room there, or cannot be written, is
counted, and the count is a line. A flood of the same event is two lines: the first, and at the end of its window one
that says how often it came again. So are many events that differ only in what is asked for, when there are too many to
be told apart. What others have named is ASCII in its line, and cut if it is long.

Owner: a node, on its loop; one thread, which it starts, writes, and owns the file.
"""

import json
import logging
import math
import os
import queue
import stat
import sys
import threading
from collections.abc import Callable, Hashable, Iterable, Mapping
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any, Final, Protocol

from ottla.config.errors import ConfigError
from ottla.model.tasks import guarded
from ottla.security.acls import AclOperation, ResourceType
from ottla.security.principal import KafkaPrincipal, address_bytes, host_address

log = logging.getLogger("ottla.audit")

LOGINS: Final = "logins"
DENIALS: Final = "denials"
CHANGES: Final = "changes"
KINDS: Final = (LOGINS, DENIALS, CHANGES)

# Instead of a file.
STDOUT: Final = "stdout"

# For so long the same event is counted and not told again.
WINDOW_S: Final = 60.0
# Events of one window that are told apart, in all and from one principal and address: whoever thinks up names shall not
# push out what others have done. Beyond it they are counted without their names, and those beyond twice as many among
# the lost ones.
MAX_TOLD_APART: Final = 10_000
MAX_APART_OF_ONE: Final = 100
# What waits to be written: events, and the things that a change names.
MAX_QUEUED: Final = 20_000
# Lines that are written at once.
MAX_WRITTEN_AT_ONCE: Final = 1_000
# Of one text in a line.
MAX_TEXT_LENGTH: Final = 1_000
# How long a node that stops waits for the last lines.
CLOSE_S: Final = 5.0
# How often it is said that nothing can be written.
COMPLAIN_S: Final = 60.0

_LINE_END: Final = ord("\n")

Fields = Mapping[str, Any]


class Sink(Protocol):
    """Where lines go; used by the thread alone."""

    def write(self, data: bytes) -> None:
        """All of it, or OSError."""

    def close(self) -> None: ...


class _Stdout:
    def __init__(self) -> None:
        self._fd = sys.stdout.fileno()

    def write(self, data: bytes) -> None:
        left = memoryview(data)
        while left:
            left = left[os.write(self._fd, left) :]

    def close(self) -> None:
        """It is not ours."""


class AuditFile:
    """A file that is put aside when it is large: `audit.log`, then `audit.log.1` and so on, the oldest last.

    One that somebody else has moved away is begun anew, so that logrotate may have it instead.
    """

    def __init__(self, path: str, max_bytes: int, kept_files: int) -> None:
        self._path = path
        self._max_bytes = max_bytes
        self._kept_files = kept_files
        self._size = 0
        self._is_torn = False
        self._fd: int | None = None
        self._open()

    def write(self, data: bytes) -> None:
        if self._fd is None or self._was_moved():
            self._open()
        if self._size and self._size + len(data) > self._put_aside_at:
            self._put_aside()
        if self._is_torn:
            data = b"\n" + data  # what follows half a line is no part of it
        assert self._fd is not None
        left = memoryview(data)
        while left:
            written = os.write(self._fd, left)
            self._is_torn = left[written - 1] != _LINE_END
            self._size += written
            left = left[written:]

    def close(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def _open(self) -> None:
        self.close()
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
        self._fd = os.open(self._path, flags, 0o600)
        status = os.fstat(self._fd)
        is_file = stat.S_ISREG(status.st_mode)
        self._size = status.st_size
        # By this process, or by one that was killed in the midst of it.
        self._is_torn = is_file and self._size > 0 and self._last_byte() != b"\n"
        # A pipe, or a terminal, stays where it is.
        self._put_aside_at: float = self._max_bytes if is_file else math.inf

    def _last_byte(self) -> bytes:
        with open(self._path, "rb") as file:
            file.seek(-1, os.SEEK_END)
            return file.read(1)

    def _was_moved(self) -> bool:
        assert self._fd is not None
        try:
            there = os.stat(self._path)
        except FileNotFoundError:
            return True
        here = os.fstat(self._fd)
        return (there.st_dev, there.st_ino) != (here.st_dev, here.st_ino)

    def _put_aside(self) -> None:
        try:
            self._rotate()
        except OSError as error:
            log.error("the audit log %s grows on, for it cannot be put aside: %s", self._path, error)
            self._open()
            self._put_aside_at = self._size + self._max_bytes  # then it is tried again

    def _rotate(self) -> None:
        self.close()
        for number in range(self._kept_files, 0, -1):
            older = f"{self._path}.{number}"
            newer = self._path if number == 1 else f"{self._path}.{number - 1}"
            if os.path.exists(newer):
                os.replace(newer, older)
        if not self._kept_files:
            os.unlink(self._path)
        self._open()


class Floods:
    """Events of one window: which came first, and how often each came again."""

    def __init__(self) -> None:
        self._by_key: dict[Hashable, _Repeated] = {}

    def __bool__(self) -> bool:
        return bool(self._by_key)

    def __len__(self) -> int:
        return len(self._by_key)

    def again(self, key: Hashable, now_ms: int) -> bool:
        """Has it come before? Then it is counted."""
        found = self._by_key.get(key)
        if found is None:
            return False
        found.count += 1
        found.last_ms = now_ms
        return True

    def first(self, key: Hashable, fields: Fields, now_ms: int) -> None:
        self._by_key[key] = _Repeated(fields, now_ms)

    def end(self) -> "list[_Repeated]":
        """What was counted; the next window begins."""
        ended, self._by_key = self._by_key, {}
        return list(ended.values())


class _Repeated:
    __slots__ = ("count", "fields", "first_ms", "last_ms")

    def __init__(self, fields: Fields, now_ms: int) -> None:
        self.fields = fields
        self.first_ms = self.last_ms = now_ms
        self.count = 0

    def line(self) -> dict[str, Any]:
        return {**self.fields, "repeated": self.count, "since": _time(self.first_ms)}


# What the thread is given: when, what all of its lines have, and what makes the rest of each.
_Entry = tuple[int, Fields, Callable[[], Iterable[Fields]] | None, int]


class AuditLog:
    """Takes events on the loop and has them written. See the module's rules."""

    def __init__(
        self,
        sink: Sink,
        *,
        node_id: int,
        now_ms: Callable[[], int],
        call_later: Callable[[float, Callable[[], None]], object],
        kinds: Iterable[str] = KINDS,
    ) -> None:
        told = frozenset(kinds)
        self.logins, self.denials, self.changes = (kind in told for kind in KINDS)
        self._now_ms = now_ms
        self._call_later = call_later
        self._window = Floods()
        # How many of them are told apart, by who they are from.
        self._of_source: dict[tuple[str, ...], int] = {}
        self._window_ends = False  # somebody will end it
        self._queue: queue.SimpleQueue[_Entry | list[_Repeated] | None] = queue.SimpleQueue()
        # Counted by the loop alone, and by the thread alone: none of them needs a lock.
        self._put = 0
        self._lost = 0
        self._is_closed = False
        self._writer = _Writer(sink, node_id, now_ms, lambda: self._lost)
        self._thread = threading.Thread(
            target=guarded(self._writer.run, name="writing", owner="audit log"),
            args=(self._queue,),
            name="ottla-audit",
            daemon=True,
        )
        self._thread.start()

    # --- what happens

    def login(
        self,
        principal: KafkaPrincipal | None,
        *,
        mechanism: str | None,
        listener: str,
        address: str,
        why: str | None = None,
        again: bool = False,
    ) -> None:
        """Somebody has proved who they are, `again` within a connection, or failed, and `why`."""
        if not self.logins:
            return
        fields: dict[str, Any] = {
            "event": "login",
            "result": "ok" if why is None else "failed",
            "principal": None if principal is None else str(principal),
            "mechanism": mechanism,
            "listener": listener,
            "address": host_address(address_bytes(address)),
        }
        if principal is not None and principal.token_authenticated:
            fields["token"] = True
        if again:
            fields["reauthentication"] = True
        if why is not None:
            fields["why"] = why[:MAX_TEXT_LENGTH]  # it is kept, and may repeat what a stranger has sent
        # Without the port, which differs each time. Whoever tries all names is one flood when these are too many.
        key = tuple(fields.items())
        now_ms = self._now_ms()
        if not self._window.again(key, now_ms):
            self._tell_first(key, fields, ("principal", "why"), ("login", fields["address"]), now_ms)

    def denied(
        self,
        principal: KafkaPrincipal,
        host: str,
        operation: AclOperation,
        resource_type: ResourceType,
        name: str,
        *,
        api: str | None,
        why: Callable[[], str],
    ) -> None:
        """Somebody may not do what was asked for."""
        if not self.denials:
            return
        name = name[:MAX_TEXT_LENGTH]  # it is kept, and a client may have thought it up
        key = ("denial", principal.type, principal.name, host, operation, resource_type, name, api)
        now_ms = self._now_ms()
        if self._window.again(key, now_ms):
            return
        fields = {
            "event": "denial",
            "principal": str(principal),
            "address": host,
            "operation": operation.name,
            "resource_type": resource_type.name,
            "resource": name,
            "api": api,
            "why": why(),
        }
        source = ("denial", principal.type, principal.name, host)
        self._tell_first(key, fields, ("resource", "why"), source, now_ms)

    def changed(self, fields: Fields, lines: Callable[[], Iterable[Fields]], things: int) -> None:
        """Somebody has changed, or tried to change, so many things; a line for each is made in the thread."""
        self._enqueue((self._now_ms(), {"event": "change", **fields}, lines, things))

    # --- floods

    def _tell_first(
        self,
        key: tuple[Any, ...],
        fields: dict[str, Any],
        hidden: tuple[str, ...],
        source: tuple[str, ...],
        now_ms: int,
    ) -> None:
        """`hidden` is what a stranger may think up, without which events are counted when they are too many."""
        of_source = self._of_source.get(source, 0)
        if of_source >= MAX_APART_OF_ONE or len(self._window) >= MAX_TOLD_APART:
            fields = {**fields, **dict.fromkeys(hidden), "various": True}
            key = tuple(fields.items())
            if self._window.again(key, now_ms):
                return
            if len(self._window) >= 2 * MAX_TOLD_APART:
                self._lost += 1
                return
        self._of_source[source] = of_source + 1
        self._window.first(key, fields, now_ms)
        if not self._window_ends:
            self._window_ends = True
            self._call_later(WINDOW_S, guarded(self._end_window, name="ending a window", owner="audit log"))
        self._enqueue((now_ms, fields, None, 1))

    def _end_window(self) -> None:
        self._window_ends = False
        self._of_source.clear()
        if ended := self._window.end():
            self._queue.put(ended)

    # --- the thread

    def _enqueue(self, entry: _Entry) -> None:
        if self._is_closed or self._put - self._writer.taken + entry[3] > MAX_QUEUED:
            self._lost += 1
            return
        self._put += entry[3]
        self._queue.put(entry)

    def end(self) -> None:
        """Nothing more is taken; what was told will be written."""
        if not self._is_closed:
            self._is_closed = True
            self._end_window()
            self._queue.put(None)

    def close(self) -> None:
        """Wait until it is written, for CLOSE_S at most; not on the loop, where `end` comes first."""
        self.end()
        self._thread.join(CLOSE_S)
        if self._thread.is_alive():
            log.error("the audit log has not been written within %.0f s: its last lines are lost", CLOSE_S)


class _Writer:
    """What the thread does."""

    def __init__(self, sink: Sink, node_id: int, now_ms: Callable[[], int], lost: Callable[[], int]) -> None:
        self.taken = 0
        self._sink = sink
        self._node_id = node_id
        self._now_ms = now_ms
        self._lost = lost
        self._lost_told = 0
        self._unwritten = 0
        self._complained_ms: int | None = None
        # Changes that failed, which may be tried without end; those that are made are all told of.
        self._failed = Floods()
        self._failed_of: dict[tuple[Any, Any], int] = {}
        self._window_ends_ms = 0

    def run(self, entries: "queue.SimpleQueue[_Entry | list[_Repeated] | None]") -> None:
        is_over = False
        while not is_over:
            lines: list[bytes] = []
            try:
                is_over = self._gather(entries, lines)
            except Exception:
                log.exception("an event cannot be put into the audit log")
                self._unwritten += 1
            self._write(lines)
        self._sink.close()

    def _gather(
        self, entries: "queue.SimpleQueue[_Entry | list[_Repeated] | None]", lines: list[bytes]
    ) -> bool:
        """Wait for entries, and make lines of those that are there; is it the end?"""
        timeout = None
        if self._failed:
            timeout = max(0.0, (self._window_ends_ms - self._now_ms()) / 1000)
        try:
            entry = entries.get(timeout=timeout)
            while True:
                if entry is None:
                    self._end_window(lines)
                    return True
                if isinstance(entry, list):
                    self._repeated(entry, lines)
                else:
                    self.taken += entry[3]
                    self._lines_of(entry, lines)
                if len(lines) >= MAX_WRITTEN_AT_ONCE:
                    return False
                entry = entries.get_nowait()
        except queue.Empty:
            if self._failed and self._now_ms() >= self._window_ends_ms:
                self._end_window(lines)
        return False

    def _end_window(self, lines: list[bytes]) -> None:
        self._failed_of.clear()
        self._repeated(self._failed.end(), lines)

    def _lines_of(self, entry: _Entry, lines: list[bytes]) -> None:
        at_ms, fields, rest, _ = entry
        if rest is None:
            lines.append(self._line(at_ms, fields))
            return
        for more in rest():
            line = {**fields, **more}
            if line.get("result") in (None, "NONE") or self._is_first(line, at_ms):
                lines.append(self._line(at_ms, line))

    def _is_first(self, line: dict[str, Any], at_ms: int) -> bool:
        """Of changes that fail like this one; when they are too many, of those of the same API."""
        if self._failed.again(key := _digest(line), at_ms):
            return False
        source = (line.get("principal"), line.get("address"))
        of_source = self._failed_of.get(source, 0)
        if of_source >= MAX_APART_OF_ONE or len(self._failed) >= MAX_TOLD_APART:
            line |= {"resource": None, "details": None, "client_id": None, "various": True}
            if self._failed.again(key := _digest(line), at_ms):
                return False
            if len(self._failed) >= 2 * MAX_TOLD_APART:
                self._unwritten += 1
                return False
        if not self._failed:
            self._window_ends_ms = at_ms + int(WINDOW_S * 1000)
        self._failed_of[source] = of_source + 1
        # What is kept of it is small, whatever a request has named.
        self._failed.first(key, _shortened({**line, "details": None}), at_ms)
        return True

    def _repeated(self, ended: list[_Repeated], lines: list[bytes]) -> None:
        lines += [self._line(each.last_ms, each.line()) for each in ended if each.count]

    def _line(self, at_ms: int, fields: Fields) -> bytes:
        line = {"time": _time(at_ms), "node": self._node_id, **_shortened(fields)}
        return json.dumps(line, separators=(",", ":"), default=str).encode() + b"\n"

    def _write(self, lines: list[bytes]) -> None:
        lost = self._lost() + self._unwritten
        if lost > self._lost_told:
            lines.append(self._line(self._now_ms(), {"event": "lost", "count": lost - self._lost_told}))
        if not lines:
            return
        try:
            self._sink.write(b"".join(lines))
        except OSError as error:
            self._unwritten += len(lines) - (lost > self._lost_told)
            now_ms = self._now_ms()
            if self._complained_ms is None or now_ms - self._complained_ms > COMPLAIN_S * 1000:
                self._complained_ms = now_ms
                log.error(
                    "the audit log cannot be written: %s; lines lost so far: %d", error, self._unwritten
                )
        else:
            self._lost_told = lost
            self._complained_ms = None


def _time(at_ms: int) -> str:
    when = datetime.fromtimestamp(at_ms // 1000, UTC)
    return f"{when:%Y-%m-%dT%H:%M:%S}.{at_ms % 1000:03d}Z"


def _shortened(value: Any) -> Any:
    if isinstance(value, str):
        return value if len(value) <= MAX_TEXT_LENGTH else value[: MAX_TEXT_LENGTH - 1] + "…"
    if isinstance(value, Mapping):
        return {str(name)[:MAX_TEXT_LENGTH]: _shortened(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_shortened(each) for each in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)  # JSON has no word for it
    return value


def _digest(line: Fields) -> bytes:
    return sha256(json.dumps(line, default=str).encode()).digest()


def open_audit_log(
    values: Mapping[str, Any],
    *,
    node_id: int,
    now_ms: Callable[[], int],
    call_later: Callable[[float, Callable[[], None]], object],
) -> AuditLog:
    """As the node's settings want it, which name a place for it; ConfigError if it cannot be written there."""
    where = values["ottla.audit.log"]
    try:
        sink: Sink = _Stdout()
        if where != STDOUT:
            sink = AuditFile(where, values["ottla.audit.log.max.bytes"], values["ottla.audit.log.backups"])
    except (OSError, ValueError, AttributeError) as error:  # the last two: there is no standard output
        why = getattr(error, "strerror", None) or error
        raise ConfigError(f"the audit log {where} cannot be written: {why}", "ottla.audit.log") from None
    return AuditLog(
        sink, node_id=node_id, now_ms=now_ms, call_later=call_later, kinds=values["ottla.audit.events"]
    )
