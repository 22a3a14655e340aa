"""The `ottla` command: finds the subcommand, runs it, turns what went wrong into one line and an exit code.

**Declaring a subcommand.** Add it to COMMANDS below, `name: (module, summary)`, and in that module write

    from ottla.cli.args import BOOTSTRAP, OUTPUT, Command, argument, switch

    def _create(args: argparse.Namespace) -> int | None:
        ...                                     # None or 0: done

    COMMAND = Command(
        "topic", "list, describe, create, alter and delete topics",
        commands=(
            Command("create", "create a topic",
                    argument("topic", nargs="+", help="its name"),
                    argument("-p", "--partitions", type=int, default=1, metavar="N", help="..."),
                    argument("--config", action="append", default=[], metavar="KEY=VALUE",
                             complete="topic-key", help="..."),
                    switch("--if-not-exists", help="..."),
                    BOOTSTRAP, OUTPUT, run=_create),
        ),
    )

A command without others under it gives `run=` at the top. `argument(...)` takes argparse's keywords, and
`complete=` ("file", "dir", "broker-key", "topic-key", or "" for nothing) for the shells. Rules:

- Modules are imported only when their command is called; heavy imports go into the functions that need them.
- Data goes to stdout through ottla.cli.output (`emit(rows, columns, args.output)`), talk to stderr (`say`).
- Raise CliError("one line") for what went wrong (exit code 1), UsageError for a wrong command line (2).
  ConfigError (2), KafkaError, OSError and any error class of Ottla's own (1) may be raised: they are
  printed as one line here. Ctrl-C is exit code 130, a closed pipe is no error. Anything else is a bug: one line, exit
  code 70, the traceback with OTTLA_DEBUG=1.
- `-o` is the output format (OUTPUT) except where kcat's meaning is older (`ottla consume -o beginning`);
  `-b` is the bootstrap server; resolve it with `args.bootstrap_servers(ns.bootstrap_server)`.

Rules of this module: only `sys` and `os` are imported before a command is chosen, so that `ottla --help`
answers at once.
"""

from __future__ import annotations

import os
import sys

from ottla import __version__
from ottla.cli import args as arguments
from ottla.cli.args import CliError, Command

TYPE_CHECKING = False

if TYPE_CHECKING:
    from collections.abc import Sequence

COMMANDS: dict[str, tuple[str, str]] = {
    "serve": ("ottla.cli.serve", "run a node (broker, controller or both) on a data directory"),
    "demo": (
        "ottla.cli.demo",
        "a broker, sample clicks and a pipeline on Spark that counts them, live, in a temporary directory",
    ),
    "topic": ("ottla.cli.topic", "list, describe, create, alter, trim and delete topics"),
    "cluster": ("ottla.cli.cluster", "say what a cluster is made of"),
    "config": ("ottla.cli.config", "show and change the configuration of topics and brokers"),
    "produce": ("ottla.cli.records.produce", "send records from files or standard input"),
    "consume": ("ottla.cli.records.consume", "print the records of a topic"),
    "group": ("ottla.cli.group.command", "list, describe, reset and delete groups; how far behind they are"),
    "txn": ("ottla.cli.txn", "list, describe and abort transactions; find those that hang"),
    "user": (
        "ottla.cli.security.user",
        "list, add, change and delete users who log in with a password (SCRAM)",
    ),
    "acl": ("ottla.cli.security.acl", "list, add, remove and explain access rules (ACLs)"),
    "quota": ("ottla.cli.security.quota", "list, set and delete quotas of users, clients and addresses"),
    "token": ("ottla.cli.security.delegation_token", "create, list, renew and expire delegation tokens"),
    "keyring": (
        "ottla.cli.security.keyring",
        "make keyrings for values that brokers cannot read (encryption.key)",
    ),
    "cert": ("ottla.cli.security.cert", "make an authority and certificates, show and renew them"),
    "pipeline": ("ottla.cli.pipeline.command", "start, watch and stop data pipelines on Spark"),
    "storage": ("ottla.cli.storage", "format a data directory, or say what is in one"),
    "log": ("ottla.cli.log.command", "look into the files of a log, or at how large logs are"),
    "profile": ("ottla.cli.profile", "keep the settings of clusters under names"),
    "completion": ("ottla.cli.completion", "print the completion script of a shell"),
}

_SUMMARY = "Ottla is Kafka, written in Python: a broker and the tools to use it."
_TAIL = """options:
  -h, --help     this page
  -V, --version  version, Python, record kernel, event loop

`ottla <command> --help` tells more about one."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line; the exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    _open_standard_streams()
    try:
        code = _dispatch(words)
        sys.stdout.flush()
        return code
    except CliError as error:
        return _fail(str(error), error.exit_code)
    except KeyboardInterrupt:
        return arguments.EXIT_INTERRUPTED
    except BrokenPipeError:
        # The reader (head, less) has seen enough. Python would complain again when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return arguments.EXIT_OK
    except SystemExit as stop:  # argparse's --help
        return stop.code if isinstance(stop.code, int) else arguments.EXIT_OK
    except Exception as error:  # noqa: BLE001 - the last line of defence: a user sees a sentence, never a stack
        return _report(error)


def _open_standard_streams() -> None:
    """A stream the caller closed (`>&-`) would be the number of the next socket or log file, and be written to."""
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        try:
            os.fstat(number)
        except OSError:
            # The lowest free number is given out: this one.
            os.open(os.devnull, os.O_RDWR)
            setattr(sys, name, os.fdopen(number, mode))


def _dispatch(words: list[str]) -> int:
    if not words or words[0] in ("-h", "--help", "help"):
        if len(words) > 1 and words[0] == "help":
            return _dispatch([*words[1:], "--help"])
        print(help_page())
        return arguments.EXIT_OK
    if words[0] in ("-V", "--version", "version"):
        print(version_line())
        return arguments.EXIT_OK
    if words[0] == "__names":  # asked by the completion scripts, not by people
        import importlib

        importlib.import_module(COMMANDS["completion"][0]).print_names(words[1:])
        return arguments.EXIT_OK
    if words[0] not in COMMANDS:
        kind = "option" if words[0].startswith("-") else "command"
        known = ["--help", "--version"] if kind == "option" else list(COMMANDS)
        raise arguments.unknown(kind, words[0], known, "ottla --help")
    return run_command(load(words[0]), words[1:], f"ottla {words[0]}")


def help_page() -> str:
    """What `ottla --help` prints."""
    listed = [(name, summary) for name, (_, summary) in COMMANDS.items()]
    return arguments.render_group_help("ottla", _SUMMARY, listed, _TAIL)


def load(name: str) -> Command:
    """Import the module of a command."""
    import importlib

    command = importlib.import_module(COMMANDS[name][0]).COMMAND
    assert isinstance(command, Command)
    return command


def run_command(command: Command, words: Sequence[str], prog: str) -> int:
    """Walk down the groups, parse what is left, run it."""
    if command.run is not None:
        return command.run(arguments.parse(command, words, prog)) or arguments.EXIT_OK
    if not words or words[0] in ("-h", "--help"):
        listed = [(name, under.summary) for name, under in command.commands.items()]
        summary = command.summary[:1].upper() + command.summary[1:] + "."
        print(arguments.render_group_help(prog, summary, listed))
        return arguments.EXIT_OK if words else arguments.EXIT_USAGE
    under = command.commands.get(words[0])
    if under is None:
        raise arguments.unknown("command", words[0], list(command.commands), f"{prog} --help")
    return run_command(under, words[1:], f"{prog} {words[0]}")


def _fail(message: str, exit_code: int) -> int:
    from ottla.cli.output import complain

    complain(message)
    return exit_code


def _report(error: Exception) -> int:
    """One line for an error that a command raised."""
    if os.environ.get("OTTLA_DEBUG"):
        import traceback

        traceback.print_exception(error)
    from ottla.config.errors import ConfigError
    from ottla.model.errors import KafkaError

    if isinstance(error, ConfigError):
        return _fail(str(error), arguments.EXIT_USAGE)
    if isinstance(error, KafkaError):
        detail = f": {error.message}" if error.message else ""
        return _fail(f"{error.code.name}{detail}", arguments.EXIT_FAILED)
    if isinstance(error, OSError):
        return _fail(_os_error(error), arguments.EXIT_FAILED)
    if type(error).__module__.startswith("ottla."):
        return _fail(str(error), arguments.EXIT_FAILED)
    return _fail(
        f"internal error, please report it: {type(error).__name__}: {error} (OTTLA_DEBUG=1 shows where)",
        arguments.EXIT_INTERNAL,
    )


def _os_error(error: OSError) -> str:
    what = error.strerror or str(error)
    return f"{error.filename}: {what}" if error.filename else what


def version_line() -> str:
    """Version, Python, record kernel (compiled or its Python twin), event loop."""
    import platform

    return (
        f"ottla {__version__} (Python {platform.python_version()}, record kernel: {_kernel()}, "
        f"event loop: {_event_loop()}, {platform.system()} {platform.machine()})"
    )


def _kernel() -> str:
    from ottla.records.kernel import KERNEL

    return str(KERNEL)


def _event_loop() -> str:
    import importlib.util

    return "uvloop" if importlib.util.find_spec("uvloop") else "asyncio"


if __name__ == "__main__":
    sys.exit(main())
