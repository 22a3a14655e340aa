"""What the commands that talk to a broker share: opening a client, and errors that say what to do.

Owned by the process that runs one command.
"""

from __future__ import annotations

from contextlib import contextmanager

from ottla.cli.args import CliError, UsageError, argument, bootstrap_servers, nearest

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable, Iterator

    from ottla.client.blocking import Admin
    from ottla.model.errors import KafkaError

PROPERTY = argument(
    "-X",
    "--property",
    action="append",
    default=[],
    metavar="KEY=VALUE",
    help="a setting of the client, e.g. linger.ms=50 (may be given many times)",
)


def settings(args: argparse.Namespace, **fixed: object) -> dict[str, object]:
    """The client's settings: what the command wants, then what -X says, then where the broker is."""
    given: dict[str, object] = {"client_id": "ottla-cli", "bootstrap_timeout_ms": 0, **fixed}
    for name, value in pairs(getattr(args, "property", []), "-X"):
        given[name] = value
    given["bootstrap_servers"] = bootstrap_servers(args.bootstrap_server)
    return given


def pairs(words: Iterable[str], option: str) -> list[tuple[str, str]]:
    """`key=value` words taken apart."""
    out = []
    for word in words:
        key, equals, value = word.partition("=")
        if not key or not equals:
            raise UsageError(f"{option} takes KEY=VALUE, not {word!r}")
        out.append((key, value))
    return out


@contextmanager
def explained() -> Iterator[None]:
    """Client errors as one line that a person can act on."""
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
        raise CliError(line(error)) from None


def line(error: KafkaError) -> str:
    """A broker's error in one line: its words, and its code unless they name it."""
    words = (error.message or error.code.name).replace("\n", " ")
    told = words if error.code.name in words else f"{words} ({error.code.name})"
    return told + _meant(words)


def _meant(words: str) -> str:
    """The nearest key that there is, where a broker of whatever make says that it does not know one."""
    import re

    from ottla.config.definitions import GROUP_KEYS, TOPIC_KEYS

    unknown = re.search(r"Unknown (topic|group) config name: (\S+)", words)
    if unknown is None:
        return ""
    guess = nearest(unknown[2], list(TOPIC_KEYS if unknown[1] == "topic" else GROUP_KEYS))
    return f"; did you mean {guess!r}?" if guess else ""


@contextmanager
def admin(args: argparse.Namespace) -> Iterator[Admin]:
    """An admin client for one command."""
    from ottla.client.blocking import Admin

    with explained(), Admin(settings(args)) as client:
        yield client


def report(errors: Iterable[KafkaError | None]) -> int:
    """Print what failed, one line each; the exit code."""
    from ottla.cli.output import say

    failed = [error for error in errors if error is not None]
    for error in failed:
        say(f"ottla: {line(error)}")
    return 1 if failed else 0
