"""The error policy of CONTRIBUTING.md, held by reading the source: nothing in the broker runs or fails unseen.

Looked for, in every package that a broker is made of:

- tasks that are started by anything but `ottla.model.tasks`;
- callbacks given to the loop, to a future or to a thread without a guard;
- work given to a thread whose outcome nobody looks at;
- a broad `except` that neither raises, nor logs, nor hands the error on;
- an error code in an answer that is taken for one of ours: a newer Kafka may have more (`error_of` knows them all).

What is right all the same stands in ALLOWED with its reason; an entry that matches nothing any more is a failure too.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

import ottla

ROOT: Final = Path(ottla.__file__).parent
PACKAGES: Final = (
    "model",
    "records",
    "security",
    "metadata",
    "storage",
    "net",
    "raft",
    "controller",
    "replication",
    "coordinator",
    "share",
    "server",
    "node",
)
STARTS: Final = {"create_task", "ensure_future", "TaskGroup"}
# The position of the callback among the arguments.
CALLBACKS: Final = {
    "call_soon": 0,
    "call_soon_threadsafe": 0,
    "call_later": 1,
    "call_at": 1,
    "add_done_callback": 0,
    "add_reader": 1,
    "add_writer": 1,
    "add_signal_handler": 1,
}
THREAD_JOBS: Final = {"submit", "run_in_executor"}
LOG_METHODS: Final = {"debug", "info", "warning", "error", "exception", "critical", "log"}
# LoopScheduler (node/coordinators.py) and PacedCalls (model/time_slice.py) guard what they are given.
GUARDING_RECEIVERS: Final = ("scheduler", "_scheduler", "_calls")

# "file:function:what": why it is right.
ALLOWED: Final[dict[str, str]] = {
    "model/tasks.py:spawn:create_task": "the one place where tasks are started",
    "model/tasks.py:spawn:add_done_callback": "a set's own method, and a coroutine's close",
    "model/time_slice.py:_is_over:call_soon": "sets a number",
    "model/time_slice.py:ends:call_soon": "sets a number",
    "model/time_slice.py:next:call_soon": "sets a future that is not done",
    "model/time_slice.py:_give:call_soon": "sets a future that is not done",
    "storage/cleaner/process.py:main:Thread": "of another process, which ends with it whatever happens",
    "net/aio.py:wake_threadsafe:call_soon_threadsafe": "asks for a turn",
    "net/aio.py:_set_timer:call_at": "asks for a turn",
    "net/aio.py:_in_thread:Thread": "run gives whatever is raised to who waits for it",
    "net/aio.py:run:call_soon_threadsafe": "sets a future that is not done",
    "server/handlers/metadata.py:find_coordinator:ErrorCode": "it is in an answer of this broker's own",
    "server/network/connection.py:_run:add_done_callback": "a dictionary's own method",
    "server/network/connection.py:_answer_ready:call_soon": "_send_soon guards itself, no closure for each answer",
    "server/network/connection.py:throttle:call_at": "asks for a turn, which is guarded",
    "server/network/connection.py:_mute_is_over:call_at": "asks for a turn, which is guarded",
    "server/handlers/fetch.py:_warm_up_first:add_done_callback": "it guards itself, and ends its connection",
    "server/handlers/fetch.py:_wait:call_later": "_finish guards itself, without a closure for each long poll",
    "server/handlers/fetch.py:_wait_for_room:call_later": "asks for a turn",
    "server/handlers/fetch.py:_wake:call_soon": "it only puts off what follows",
    "server/handlers/fetch.py:_let_others_come:call_soon": "_look_again guards itself, likewise",
    "server/handlers/fetch.py:_reply:add_done_callback": "_warmed guards itself, and ends its connection",
    "server/network/tls.py:step:submit": "_make gives whatever is raised to whose handshake it is",
    "server/network/tls.py:_make:call_soon_threadsafe": "counts, and calls what is guarded",
    "server/network/output.py:flush:add_writer": "_on_writable tells its connection of every error",
    "share/fetch.py:_warm_up:add_done_callback": "_warmed and _sendable guard themselves",
    "server/topic_creation.py:_begin:add_done_callback": "a dictionary's own method",
    "server/network/connection.py:later:call_soon": "sets two numbers",
    "server/limits.py:run:add_done_callback": "releases a lock that it holds",
    "node/coordinators.py:call_later:call_later": "_call guards it, without a closure for each timer",
    "node/coordinators.py:_run:Thread": "_compute gives whatever is raised to who waits for it",
    "node/coordinators.py:_compute:call_soon_threadsafe": "sets a future that is not done",
    "model/time_slice.py:call_soon:call_soon": "PacedCalls: each of its calls is guarded",
    "model/time_slice.py:_run:call_soon": "PacedCalls: each of its calls is guarded",
}


def of_a_file(path: Path) -> Iterator[tuple[str, int]]:
    """What stands in the file against the policy: its key in ALLOWED, and its line."""
    tree = ast.parse(path.read_text(), str(path))
    where = path.relative_to(ROOT).as_posix()
    guarded_names = {
        target.attr if isinstance(target, ast.Attribute) else target.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and _is_guarded(node.value, set())
        for target in node.targets
        if isinstance(target, ast.Attribute | ast.Name)
    }
    for function, node in _with_function(tree, "<module>"):
        for what in _faults(node, guarded_names):
            yield f"{where}:{function}:{what}", getattr(node, "lineno", 0)


def _with_function(node: ast.AST, function: str) -> Iterator[tuple[str, ast.AST]]:
    for child in ast.iter_child_nodes(node):
        inner = child.name if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef) else function
        yield inner, child
        yield from _with_function(child, inner)


def _faults(node: ast.AST, guarded_names: set[str]) -> Iterator[str]:
    if isinstance(node, ast.ExceptHandler):
        if _is_broad(node.type) and not _is_told(node):
            yield "except"
    elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        # Nobody keeps what it gives back: the future of a thread's job would swallow an exception.
        job = node.value
        if _name(job.func) in THREAD_JOBS and not any(_is_guarded(a, guarded_names) for a in job.args):
            yield _name(job.func)
    if not isinstance(node, ast.Call):
        return
    name = _name(node.func)
    is_an_answers = [_name(argument) for argument in node.args] == ["error_code"]
    if name in STARTS or (name == "ErrorCode" and is_an_answers):
        yield name
    elif name in CALLBACKS and isinstance(node.func, ast.Attribute):
        if _name(node.func.value) in GUARDING_RECEIVERS:
            return
        callback = node.args[CALLBACKS[name]] if len(node.args) > CALLBACKS[name] else None
        if callback is not None and not _is_guarded(callback, guarded_names):
            yield name
    elif name == "Thread":
        target = next((k.value for k in node.keywords if k.arg == "target"), None)
        if target is None or not _is_guarded(target, guarded_names):
            yield name


def _name(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def _is_guarded(node: ast.expr, guarded_names: set[str]) -> bool:
    if isinstance(node, ast.Attribute) and node.attr == "discard":
        return True  # a set's own method: it cannot raise
    if isinstance(node, ast.Call) and _name(node.func) == "partial":
        return bool(node.args) and _is_guarded(node.args[0], guarded_names)
    return (isinstance(node, ast.Call) and _name(node.func) == "guarded") or _name(node) in guarded_names


def _is_broad(kind: ast.expr | None) -> bool:
    kinds = kind.elts if isinstance(kind, ast.Tuple) else [kind]
    return any(k is None or _name(k) in ("Exception", "BaseException") for k in kinds)


def _is_told(handler: ast.ExceptHandler) -> bool:
    """Raised again, logged, or handed on: the error itself, given to somebody by name."""
    for node in ast.walk(handler):
        if isinstance(node, ast.Raise):
            return True
        if isinstance(node, ast.Assign | ast.Return) and _uses(node.value, handler.name):
            return True
        if not isinstance(node, ast.Call):
            continue
        if isinstance(node.func, ast.Attribute) and _name(node.func.value) in ("log", "logger", "logging"):
            if node.func.attr in LOG_METHODS:
                return True
        elif any(
            _uses(argument, handler.name) for argument in [*node.args, *(k.value for k in node.keywords)]
        ):
            return True
    return False


def _uses(node: ast.expr | None, name: str | None) -> bool:
    if node is None or name is None:
        return False
    return any(isinstance(part, ast.Name) and part.id == name for part in ast.walk(node))


def files(package: str) -> list[Path]:
    return sorted((ROOT / package).rglob("*.py"))


@pytest.mark.parametrize("package", PACKAGES)
def test_nothing_runs_or_fails_unseen(package: str) -> None:
    found = [(key, line) for path in files(package) for key, line in of_a_file(path) if key not in ALLOWED]
    assert not found, "\n".join(f"{key} (line {line})" for key, line in found)


def test_what_is_allowed_is_still_there() -> None:
    found = {key for package in PACKAGES for path in files(package) for key, _ in of_a_file(path)}
    assert not ALLOWED.keys() - found


@pytest.mark.parametrize(
    ("source", "what"),
    [
        ("async def f(): loop.create_task(g())", "create_task"),
        ("async def f(): asyncio.ensure_future(g())", "ensure_future"),
        ("async def f():\n async with asyncio.TaskGroup() as g: pass", "TaskGroup"),
        ("def f(): loop.call_later(1, g)", "call_later"),
        ("def f(): loop.call_soon(lambda: g())", "call_soon"),
        ("def f(): future.add_done_callback(g)", "add_done_callback"),
        ("def f(): Thread(target=g).start()", "Thread"),
        ("def f(): executor.submit(g)", "submit"),
        ("def f(): loop.run_in_executor(None, g)", "run_in_executor"),
        ("def f(): g(ErrorCode(response.error_code).name)", "ErrorCode"),
        ("def f(): g(error_of(response.error_code))", None),
        ("def f():\n try: g()\n except Exception: pass", "except"),
        ("def f():\n try: g()\n except: return None", "except"),
        ("def f():\n try: g()\n except (OSError, Exception) as e: h()", "except"),
        ("def f(): loop.call_later(1, guarded(g, name='', owner=''))", None),
        ("def f():\n h = guarded(g, name='', owner='')\n loop.call_soon(h)", None),
        ("def f(): self._scheduler.call_later(1, g)", None),
        ("def f(): Thread(target=guarded(g, name='', owner='')).start()", None),
        ("async def f(): await loop.run_in_executor(None, g)", None),
        ("def f():\n try: g()\n except Exception: raise", None),
        ("def f():\n try: g()\n except Exception as e: log.error('%s', e)", None),
        ("def f():\n try: g()\n except Exception as e: self._fail(e)", None),
        ("def f():\n try: g()\n except Exception as e: found = e", None),
        ("def f(): task.add_done_callback(tasks.discard)", None),
        ("def f():\n try: g()\n except OSError: pass", None),
    ],
)
def test_the_reader_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, what: str | None
) -> None:
    monkeypatch.setattr("tests.unit.model.test_error_policy.ROOT", tmp_path)
    (tmp_path / "x.py").write_text(source)
    assert [key for key, _ in of_a_file(tmp_path / "x.py")] == ([] if what is None else [f"x.py:f:{what}"])
