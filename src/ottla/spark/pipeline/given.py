"""What a run is given for the parameters and secrets of its file, and what is wrong with it, before Spark starts.

A parameter is looked for in the sources in their order: --param, the environment (OTTLA_PARAM_NAME), --param-file; in
each of them under STREAM.NAME, then under NAME. A secret is looked for in the environment, then in the file that the
environment names, then in the directory of secrets, and then asked of the command.

Rules: a source that belongs to the run (--param, --param-file) may hold nothing that the file does not declare; the
environment is shared with others. Secrets are asked for once, by the process that starts the run, and handed on by
standard input; they are in no repr and in no message, and `discreet` takes them out of what others say.
"""

from __future__ import annotations

import json
import os
import re
import select
import shlex
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any, Final

from ottla.spark.pipeline.declare import (
    Declared,
    DeclaredPipeline,
    Iceberg,
    Parquet,
    PipelineError,
    Problem,
    Topic,
    did_you_mean,
    listed,
    parameters,
)
from ottla.spark.pipeline.parameters import Param, ParameterError, Secret

PARAM_VARIABLE: Final = "OTTLA_PARAM_"
SECRET_VARIABLE: Final = "OTTLA_SECRET_"
FILE_SUFFIX: Final = "_FILE"
MAX_FILE_BYTES: Final = 1_000_000
MAX_SECRET_BYTES: Final = 65_536
COMMAND_TIMEOUT_S: Final = 60.0


def variable(prefix: str, name: str) -> str:
    """The environment's name of something: OTTLA_PARAM_COPY_LIMIT of copy.limit."""
    return prefix + re.sub(r"[^A-Za-z0-9]", "_", name).upper()


def _itself(name: str) -> str:
    return name


@dataclass(frozen=True)
class Source:
    """Where values of parameters come from, as text under NAME or STREAM.NAME."""

    where: str
    values: Mapping[str, str] = field(repr=False)
    key: Callable[[str], str] = _itself
    is_own: bool = True  # of this run alone: what is not declared is a mistake

    def find(self, *names: str) -> tuple[str, str] | None:
        """The first of these names that is here, as it is spelt here, and its value."""
        for name in map(self.key, names):
            if name in self.values:
                return name, self.values[name]
        return None


def environment(environ: Mapping[str, str]) -> Source:
    """The variables of a process."""
    return Source("the environment", environ, partial(variable, PARAM_VARIABLE), is_own=False)


def param_file(path: str) -> Source:
    """A TOML or (by its suffix) JSON file: `limit = 5`, and a table for each stream; PipelineError."""
    try:
        with open(path, "rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
        if len(data) > MAX_FILE_BYTES:
            raise PipelineError(
                Problem(path, f"larger than {MAX_FILE_BYTES:,} bytes: this is no file of parameters")
            )
        text = data.decode()
        is_json = path.lower().endswith(".json")
        found: Any = json.loads(text, object_pairs_hook=_once) if is_json else tomllib.loads(text)
    except OSError as error:
        raise PipelineError(Problem(path, str(error.strerror or error))) from None
    except (ValueError, RecursionError) as error:
        raise PipelineError(
            Problem(path, f"neither TOML nor, with the suffix .json, JSON: {error}")
        ) from None
    if not isinstance(found, dict):
        raise PipelineError(Problem(path, "holds no names with values"))
    values: dict[str, str] = {}
    for name, value in _flat(path, found):
        if name in values:
            raise PipelineError(Problem(path, f"{name} is there twice"))
        values[name] = value
    return Source(path, values)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object of JSON, whose names are there once: TOML knows this by itself."""
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"{next(name for name in names if names.count(name) > 1)} is there twice")
    return found


def _flat(path: str, found: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for name, value in found.items():
        members = value.items() if isinstance(value, dict) else [("", value)]
        for member, one in members:
            key = f"{name}.{member}" if member else name
            if isinstance(one, bool):
                yield key, str(one).lower()
            elif isinstance(one, datetime | date):
                yield key, one.isoformat()
            elif isinstance(one, str | int | float):
                yield key, str(one)
            else:
                what = f"{key}: takes a number, text, true, false or a time, not {type(one).__name__}"
                raise PipelineError(Problem(path, what))


@dataclass(frozen=True)
class Secrets:
    """Where secrets come from."""

    environ: Mapping[str, str] = field(default_factory=dict, repr=False)
    directory: str | None = None
    command: str | None = field(default=None, repr=False)
    known: Mapping[str, str] = field(
        default_factory=dict, repr=False
    )  # found already, by the one who started this

    def find(self, name: str) -> str | None:
        """A secret's value, None where nobody has it; ParameterError says what is wrong with it, not what it is."""
        if name in self.known:
            return self.known[name]
        key = variable(SECRET_VARIABLE, name)
        if key in self.environ:
            return _some(self.environ[key], f"the variable {key}")
        if key + FILE_SUFFIX in self.environ:
            return _some(
                _contents(Path(self.environ[key + FILE_SUFFIX]), key + FILE_SUFFIX), key + FILE_SUFFIX
            )
        if self.directory is not None:
            file = Path(self.directory) / name
            if file.is_file():
                return _some(_contents(file, "--secrets-dir"), str(file))
        return None if self.command is None else _asked(self.command, name)


def _contents(path: Path, named_by: str) -> str:
    try:
        with open(path, "rb") as file:
            return _text(file.read(MAX_SECRET_BYTES + 1), str(path))
    except OSError as error:
        raise ParameterError(f"{named_by}: {path}: {error.strerror or type(error).__name__}") from None


def _asked(command: str, name: str) -> str:
    """What a command says, run without a shell. What it says otherwise is not repeated: there may be a secret in it."""
    try:
        words = [word.replace("{name}", name) for word in shlex.split(command)]
    except ValueError as error:
        raise ParameterError(f"--secret-command: {error}") from None
    if not words:
        raise ParameterError("--secret-command is empty")
    try:
        process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
    except OSError as error:
        raise ParameterError(
            f"--secret-command: {words[0]}: {error.strerror or type(error).__name__}"
        ) from None
    try:
        said = _bounded(process)
    except subprocess.TimeoutExpired:
        raise ParameterError(f"--secret-command: {words[0]} took over {COMMAND_TIMEOUT_S:g} s") from None
    finally:
        process.kill()
        process.wait()
    if process.returncode and len(said) <= MAX_SECRET_BYTES:
        raise ParameterError(f"--secret-command: {words[0]} ended with code {process.returncode}")
    return _some(_text(said, f"--secret-command: {words[0]}"), f"what {words[0]} said")


def _bounded(process: subprocess.Popen[bytes]) -> bytes:
    """What a process says, not more than a secret may be long and not for ever."""
    assert process.stdout is not None
    said = b""
    deadline = time.monotonic() + COMMAND_TIMEOUT_S
    with process.stdout as pipe:
        while len(said) <= MAX_SECRET_BYTES:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([pipe], [], [], left)[0]:
                raise subprocess.TimeoutExpired("", COMMAND_TIMEOUT_S)
            data = os.read(pipe.fileno(), MAX_SECRET_BYTES + 1 - len(said))
            if not data:
                process.wait(max(deadline - time.monotonic(), 0))
                break
            said += data
    return said


def _text(data: bytes, where: str) -> str:
    if len(data) > MAX_SECRET_BYTES:
        raise ParameterError(f"{where}: longer than {MAX_SECRET_BYTES:,} bytes: this is no secret")
    try:
        text = data.decode()
    except UnicodeDecodeError:
        raise ParameterError(f"{where}: not UTF-8 text") from None
    # A line as editors and `echo` write it; what a secret ends with otherwise belongs to it.
    return text.removesuffix("\n").removesuffix("\r")


def _some(value: str, where: str) -> str:
    if not value.strip():
        raise ParameterError(f"{where} is empty")
    return value


@dataclass(frozen=True)
class Given:
    """All that a run is given; what it lacks is a problem of the file where `is_complete`."""

    sources: tuple[Source, ...] = ()
    secrets: Secrets | None = None  # None: nobody asks for them
    is_complete: bool = True


# For those who only look at what a file declares (its streams, its topics): nothing is missing.
NOTHING: Final = Given(is_complete=False)


def of_environment() -> Given:
    """What this process's environment gives."""
    return Given((environment(os.environ),), Secrets(os.environ))


class Answers:
    """Values for the parameters of one file: those at its top while it runs, those of its functions afterwards."""

    def __init__(self, given: Given, file: Path) -> None:
        self._given = given
        self._file = file
        self.values: dict[str, Any] = {}
        self.texts: dict[str, str] = {}
        self.problems: list[Problem] = []
        self._tops: list[str] = []

    def named(self, name: str, param: Param) -> Any:
        """The value of a parameter at the file's top. Where there is none the file goes on, to tell of the others."""
        where = f"{self._file.name}:{_line_in(self._file)}: param {name!r}"
        self._tops.append(name)
        if self._answer(where, name, (name,), param):
            return self.values[name]
        return param.kind(0) if param.kind in (int, float, bool) else name

    def of_functions(self, pipeline: DeclaredPipeline) -> None:
        """The parameters of all streams and of their views, under STREAM.NAME."""
        seen: set[str] = set()
        for declared, name, param in declared_params(pipeline):
            key, where = f"{declared.name}.{name}", pipeline.where(declared, name)
            if key in seen:
                what = f"there are two parameters {key}: name the stream or the view otherwise"
                self.problems.append(Problem(where, what))
            else:
                self._answer(where, key, (key, name), param)
            seen.add(key)
        self.problems += self._unknown(pipeline)
        self.problems = list(dict.fromkeys(self.problems))

    def _answer(self, where: str, key: str, names: tuple[str, ...], param: Param) -> bool:
        try:
            standing = param.standing()
        except ParameterError as error:
            self.problems.append(Problem(where, str(error)))
            return False
        for source in self._given.sources:
            found = source.find(*names)
            if found is None:
                continue
            try:
                self.values[key] = param.of(found[1])
            except ParameterError as error:
                said = (
                    f"{source.where} {found[0]}"
                    if source.where.startswith("-")
                    else f"{found[0]} in {source.where}"
                )
                self.problems.append(Problem(where, f"{said}: {error}"))
                return False
            self.texts[key] = found[1]
            return True
        if param.is_required:
            if self._given.is_complete:
                self.problems.append(Problem(where, _missing(names[-1], param)))
            return False
        self.values[key] = standing
        return True

    def _unknown(self, pipeline: DeclaredPipeline) -> Iterator[Problem]:
        functions = [f"{declared.name}.{name}" for declared, name, _ in declared_params(pipeline)]
        known = list(dict.fromkeys([*self._tops, *functions, *(key.rpartition(".")[2] for key in functions)]))
        for source in self._given.sources:
            for name in sorted(source.values) if source.is_own else ():
                if name not in known:
                    hint = (
                        did_you_mean(name, known)
                        or f"; it has {listed(dict.fromkeys([*self._tops, *functions]))}"
                    )
                    yield Problem(
                        pipeline.path.name, f"{source.where} {name}: there is no such parameter{hint}"
                    )


def _line_in(file: Path) -> int:
    """The line of the file that is being run."""
    frame = sys._getframe()
    while frame.f_back is not None and frame.f_code.co_filename != str(file):
        frame = frame.f_back
    return frame.f_lineno


def _missing(name: str, param: Param) -> str:
    said = f" ({param.help})" if param.help else ""
    give = f"--param {name}=VALUE, the variable {variable(PARAM_VARIABLE, name)} or --param-file"
    return f"a value is missing{said}: {give} gives one, of the type {param.kind_name}"


def declared_params(pipeline: DeclaredPipeline) -> Iterator[tuple[Declared, str, Param]]:
    """The parameters of all functions: whose, under which name, what."""
    for declared in pipeline.functions():
        for name, default in parameters(declared.function).items():
            if isinstance(default, Param):
                yield declared, name, default


def shown(values: Mapping[str, Any]) -> dict[str, Any]:
    """Values as JSON has them."""
    return {key: _plain(value) for key, value in values.items()}


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.isoformat()
    return str(value) if isinstance(value, timedelta) else value


# -- secrets ----------------------------------------------------------------------------------------------------


def declared_secrets(pipeline: DeclaredPipeline) -> Iterator[tuple[Declared, str, Secret]]:
    """Every secret that is used: by whom, where (the parameter, `out`, `dead_letter`), which."""
    for declared in pipeline.functions():
        for name, default in parameters(declared.function).items():
            if isinstance(default, Secret):
                yield declared, name, default
            else:
                yield from ((declared, name, found) for found in _of_options(default))
    for stream in pipeline.streams:
        for name, sink in (("out", stream.out), ("dead_letter", stream.dead_letter)):
            yield from ((stream, name, found) for found in _of_options(sink))


def _of_options(place: Any) -> list[Secret]:
    options = place.catalog if isinstance(place, Iceberg) else getattr(place, "options", None)
    return (
        [value for value in options.values() if isinstance(value, Secret)]
        if isinstance(options, Mapping)
        else []
    )


def refused_secrets(place: Any) -> Iterator[str]:
    """Why a secret may not stand where it stands: Spark shows options in its plans, but for those of logging in."""
    from ottla.client.config import SECRET_KEYS
    from ottla.spark.connection import PREFIX

    if isinstance(place, Topic):
        for key, value in place.options.items():
            if isinstance(value, Secret) and key.lower().removeprefix(PREFIX) not in SECRET_KEYS:
                yield f"options: {key!r} is shown in Spark's plans, so it takes no secret; settings that are secret do"
        if any(isinstance(value, Secret) for value in place.config.values()):
            yield "config: a topic's configuration is shown to everybody, so it takes no secret"
        for key, value in place.registry_options.items():
            if isinstance(value, Secret):
                # Its text would be sent for the password: nobody puts the value in its place there.
                yield f"registry_options: {key!r} takes no secret(): read the text from a variable or a file"
    elif isinstance(place, Parquet) and any(isinstance(value, Secret) for value in place.options.values()):
        yield "options: Spark shows them in its plans, so they take no secret"


def find_secrets(pipeline: DeclaredPipeline, secrets: Secrets) -> tuple[dict[str, str], list[Problem]]:
    """The values of all secrets that the file names, and what is wrong, one line a place; each is asked for once."""
    values: dict[str, str] = {}
    wrong: dict[str, str] = {}
    problems: list[Problem] = []
    for declared, parameter, one in declared_secrets(pipeline):
        name = one.name
        if name not in values and name not in wrong:
            try:
                value = secrets.find(name)
            except ParameterError as error:
                wrong[name] = f"{one}: {error}"
            else:
                if value is None:
                    wrong[name] = f"{one} is nowhere: {_places(name, secrets)}"
                else:
                    values[name] = value
        if name in wrong:
            problems.append(pipeline.problem(declared, parameter, wrong[name]))
    return values, list(dict.fromkeys(problems))


def _places(name: str, secrets: Secrets) -> str:
    key = variable(SECRET_VARIABLE, name)
    near = [
        found.removeprefix(SECRET_VARIABLE).removesuffix(FILE_SUFFIX)
        for found in secrets.environ
        if found.startswith(SECRET_VARIABLE)
    ]
    file = (
        f"{Path(secrets.directory) / name}" if secrets.directory else f"--secrets-dir (a file named {name})"
    )
    hint = did_you_mean(key.removeprefix(SECRET_VARIABLE).lower(), [word.lower() for word in near])
    return f"set {key} or {key}{FILE_SUFFIX}, or give {file} or --secret-command{hint}"


def revealed(options: Mapping[str, str], secrets: Mapping[str, str]) -> dict[str, str]:
    """Options with the values of their secrets, for whoever uses them now."""
    return {
        key: secrets[value.name] if isinstance(value, Secret) else value for key, value in options.items()
    }


def without_secret_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """An environment for processes that get their secrets otherwise."""
    return {key: value for key, value in environ.items() if not key.startswith(SECRET_VARIABLE)}
