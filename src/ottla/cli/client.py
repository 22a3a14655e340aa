"""What the commands that talk to a broker share: opening a client, and errors that say what to do.

Owned by the process that runs one command.
"""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ottla.cli.args import BOOTSTRAP, CliError, UsageError, argument, bootstrap_servers, nearest, pairs
from ottla.cli.profile import profile_file

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable, Iterator

    from ottla.client.admin.types import ConfigChange
    from ottla.client.blocking import Admin
    from ottla.client.config import ClientConfig
    from ottla.model.errors import KafkaError

# How a command that prints records polls.
POLL_MS = 1000.0
MAX_POLL_RECORDS = 5000

PROPERTY = argument(
    "-X",
    "--property",
    action="append",
    default=[],
    metavar="KEY=VALUE",
    help="a setting of the client, e.g. linger.ms=50 (may be given many times)",
)
COMMAND_CONFIG = argument(
    "--command-config",
    metavar="FILE",
    complete="file",
    help="a properties file with settings of the client, as Kafka's tools take it; -X wins over it "
    "(default: $OTTLA_CONFIG)",
)
PROFILE = argument(
    "--profile",
    metavar="NAME",
    complete="profile",
    help="the settings that `ottla profile` keeps under this name (default: $OTTLA_PROFILE or the one in use)",
)
# Of schema registries, by the names of Confluent's clients: not for the client of the brokers.
REGISTRY_URL = "schema.registry.url"
REGISTRY_KEYS = (
    REGISTRY_URL,
    "basic.auth.user.info",
    "bearer.auth.token",
    "schema.registry.basic.auth.user.info",
    "schema.registry.bearer.auth.token",
    "schema.registry.ssl.ca.location",
    "schema.registry.request.timeout.ms",
)
# What every command that talks to a cluster takes.
CLUSTER = (PROFILE, COMMAND_CONFIG, PROPERTY, BOOTSTRAP)


def settings(
    args: argparse.Namespace, kind: type[ClientConfig] | None = None, **fixed: object
) -> dict[str, object]:
    """The client's settings: what the command wants, the profile, --command-config, -X; -b says where the broker is.

    `kind` is the configuration of the client they are for (an admin client's without).
    """
    from ottla.client.config import AdminConfig

    given: dict[str, object] = {"client_id": "ottla-cli", "bootstrap_timeout_ms": 0, **fixed}
    for file in (profile_file(args.profile), command_config(args)):
        if file is not None:
            given |= _from_file(file, kind or AdminConfig)
    for name, value in pairs(args.property, "-X"):
        if name not in REGISTRY_KEYS:
            given[name] = value
    named = given.pop("bootstrap.servers", None) or given.get("bootstrap_servers")
    given["bootstrap_servers"] = args.bootstrap_server or named or bootstrap_servers(None)
    return given


def _from_file(file: str, kind: type[ClientConfig]) -> dict[str, object]:
    """The settings in a file that is for Kafka's tools too: what this client has no use for is reported, or ignored."""
    from ottla.cli.output import say
    from ottla.client.config import settings_file
    from ottla.client.errors import ConfigError

    try:
        found = settings_file(file, kind)
    except ConfigError as error:
        raise UsageError(str(error)) from None
    for name, number in found.ignored:
        if name in REGISTRY_KEYS:
            continue
        say(f"ottla: ignored: {name} ({file}, line {number}) is no setting of this client")
    return {name.replace(".", "_"): value for name, value in found.taken.items()}


def command_config(args: argparse.Namespace) -> str | None:
    """The file of --command-config; without it, of $OTTLA_CONFIG."""
    return args.command_config or os.environ.get("OTTLA_CONFIG") or None


@contextmanager
def explained(args: argparse.Namespace | None = None) -> Iterator[None]:
    """Client errors as one line that a person can act on; with `args`, a topic that is misspelt is looked for."""
    from ottla.client.errors import ConfigError, NoBrokersAvailable, NotABroker
    from ottla.model.errors import KafkaError

    try:
        yield
    except NotABroker as error:
        raise CliError(f"{error}; name a broker with -b HOST:PORT") from None
    except NoBrokersAvailable as error:
        raise CliError(f"{error}; start one with `ottla serve`, or name another with -b HOST:PORT") from None
    except ConfigError as error:
        raise UsageError(str(error)) from None
    except KafkaError as error:
        raise CliError(line(error, args)) from None


def line(error: KafkaError, args: argparse.Namespace | None = None) -> str:
    """A broker's error in one line: its words, its code unless they name it, and what may have been meant."""
    words = (error.message or error.code.name).replace("\n", " ")
    if words.endswith("REQUEST_TIMED_OUT"):
        # A broker without a controller says no more than that.
        words += ": the cluster has not answered in time, and whether it was done is not known"
    text = words if error.code.name in words else f"{words} ({error.code.name})"
    guess = _meant_key(words) or (None if args is None else _meant_topic(error, words, args))
    return text if guess is None else f"{text}; did you mean {guess!r}?"


def _meant_key(words: str) -> str | None:
    """The nearest key that there is, where a broker of whatever make says that it does not know one."""
    import re

    from ottla.config.definitions import GROUP_KEYS, TOPIC_KEYS

    unknown = re.search(r"Unknown (topic|group) config name: (\S+)", words)
    if unknown is None:
        return None
    return nearest(unknown[2], list(TOPIC_KEYS if unknown[1] == "topic" else GROUP_KEYS))


def _meant_topic(error: KafkaError, words: str, args: argparse.Namespace) -> str | None:
    """The nearest topic that there is, where one is not."""
    import re

    from ottla.client.blocking import Admin
    from ottla.model.errors import ErrorCode, KafkaError

    unknown = re.search(r"topic '([^']+)'", words)
    if error.code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION or unknown is None:
        return None
    try:
        with Admin(settings(args)) as client:
            return nearest(
                unknown[1], [topic.name for topic in client.list_topics() if not topic.is_internal]
            )
    except KafkaError:
        return None  # the error that was reported already is the one that counts


@contextmanager
def admin(args: argparse.Namespace) -> Iterator[Admin]:
    """An admin client for one command."""
    from ottla.client.blocking import Admin

    with explained(args), Admin(settings(args)) as client:
        yield client


def report(errors: Iterable[KafkaError | None], args: argparse.Namespace | None = None) -> int:
    """Print what failed, one line each; the exit code. With `args`, topics that are misspelt are looked for."""
    from ottla.cli.output import complain

    failed = [error for error in errors if error is not None]
    for error in failed:
        complain(line(error, args))
    return 1 if failed else 0


def described(changes: Iterable[ConfigChange]) -> str:
    """What was changed, in few words: `retention.ms=777 set, flush.ms taken back`."""
    from ottla.client.admin.types import ConfigOperation

    words = {
        ConfigOperation.SET: "{0}={1} set",
        ConfigOperation.DELETE: "{0} taken back",
        ConfigOperation.APPEND: "{1} added to {0}",
        ConfigOperation.SUBTRACT: "{1} taken from {0}",
    }
    return ", ".join(words[op].format(name, _shown(name, value)) for name, value, op in changes)


def _shown(name: str, value: str | None) -> str | None:
    """A password is not repeated on the screen."""
    from ottla.config.settings import base_key

    key = base_key(name)
    return "[hidden]" if key is not None and key.sensitive else value
