"""`ottla completion bash|zsh|fish`: a script that lets the shell complete commands, options, keys and names.

shtab makes the scripts from the declarations of the commands, so a new option is completed without further ado.
Commands, options and keys stand in them; for the names of topics, groups, pipelines and profiles they ask
`ottla __names KIND` with what has been typed so far, so that -b and --profile count. What does not answer within two
seconds has no names. shtab is imported by `ottla completion` alone.

Rule: groups are called what clients have thought up, and a shell may run what it completes (bash's `compgen -W` runs
$(...) at once). A name is offered only if it means nothing to any shell; the others have to be typed, and quoted.
"""

from __future__ import annotations

import itertools
import os
import re
from typing import TYPE_CHECKING

from ottla.cli.args import Command, argument

if TYPE_CHECKING:
    import argparse

_INSTALL = """\
  bash   ottla completion bash > ~/.local/share/bash-completion/completions/ottla
  zsh    ottla completion zsh > ~/.zfunc/_ottla          (with ~/.zfunc in $fpath)
  fish   ottla completion fish > ~/.config/fish/completions/ottla.fish"""

SHELLS = ("bash", "zsh", "fish")
NAMES = ("topic", "group", "pipeline", "profile")
NAMES_COMMAND = "__names"
_PATIENCE_S = 2.0
# What no shell takes for more than letters, wherever it stands.
_HARMLESS = re.compile(r"[A-Za-z0-9_./:@%+,][A-Za-z0-9_./:@%+,=-]*")
# Options whose values say where the names are.
_WHERE = {
    "-b": "bootstrap_server",
    "--bootstrap-server": "bootstrap_server",
    "--command-config": "command_config",
    "--profile": "profile",
    "--state-dir": "state_dir",
}

# How each shell asks for the names of a kind, with the words typed so far: functions that stand in its script.
_NAMES_IN = {
    "bash": f"""\
_ottla_names() {{
    local name
    "${{COMP_WORDS[0]}}" {NAMES_COMMAND} "$1" "${{COMP_WORDS[@]:1:COMP_CWORD-1}}" 2>/dev/null |
        while IFS= read -r name; do [[ $name == "$2"* ]] && printf '%s\\n' "$name"; done
}}
""",
    "zsh": f"""\
_ottla_names() {{
    local -a names
    names=("${{(@f)$(${{_comp_command1:-ottla}} {NAMES_COMMAND} $1 ${{(Q)words[2,CURRENT-1]}} 2>/dev/null)}}")
    compadd -a names
}}
""",
    "fish": f"""\
function _ottla_names
    set -l typed (commandline -opc)
    $typed[1] {NAMES_COMMAND} $argv[1] $typed[2..-1] 2>/dev/null
end
""",
}
# shtab asks for words in a subshell, where compopt has no effect: after `key=` there is no space.
_BASH_END = """\
_ottla() {
    _shtab_ottla "$@"
    case "${COMPREPLY[0]-}" in *=) compopt -o nospace 2>/dev/null ;; esac
    return 0
}
complete -o bashdefault -F _ottla ottla"""


def script(shell: str) -> str:
    """The completion script of a shell."""
    import shtab

    made: str = shtab.complete(whole_parser(), shell, preamble=_functions()[shell])
    if shell == "bash":
        return f"{made}\n{_BASH_END}"
    # Of arguments that take many words shtab completes the first in zsh: `*:` is for all of them.
    # And `source <(ottla completion zsh)` is to register it as `eval` does.
    return (
        made.replace('"(*)::', '"*:').replace("== eval ]]", "== (eval|file) ]]") if shell == "zsh" else made
    )


def whole_parser() -> argparse.ArgumentParser:
    """All commands in one parser; imports every module that declares one."""
    import argparse

    from ottla.cli.main import COMMANDS, load

    parser = argparse.ArgumentParser(prog="ottla")
    under = parser.add_subparsers()
    for name, (_, summary) in COMMANDS.items():
        _add(under, load(name), summary)
    return parser


def _add(under: argparse._SubParsersAction[argparse.ArgumentParser], command: Command, summary: str) -> None:
    parser = under.add_parser(command.name, help=summary)
    if command.commands:
        below = parser.add_subparsers()
        for child in command.commands.values():
            _add(below, child, child.summary)
    for declared in command.arguments:
        action = parser.add_argument(*declared.flags, help=declared.help, **declared.kwargs)
        # shtab writes it into zsh's specifications as it is, and the colon of HOST:PORT ends a field there.
        action.metavar = None
        if declared.complete:
            action.complete = _completed(declared.complete)  # type: ignore[attr-defined]


def _completed(kind: str) -> str | dict[str, str]:
    """What shtab takes for a kind of value: the name of one of its own, or what each shell calls."""
    if kind in ("file", "dir"):
        return {"file": "file", "dir": "directory"}[kind]
    function = f"_ottla_{kind.replace('-', '_')}"
    return {"bash": function, "zsh": function, "fish": f"({function})"}


def _functions() -> dict[str, str]:
    """The functions that `_completed` names, for each shell."""
    out = dict(_NAMES_IN)
    for kind in NAMES:
        out["bash"] += f'_ottla_{kind}() {{ _ottla_names {kind} "$1"; }}\n'
        out["zsh"] += f"_ottla_{kind}() {{ _ottla_names {kind} }}\n"
        out["fish"] += f"function _ottla_{kind}; _ottla_names {kind}; end\n"
    for kind in ("broker-key", "topic-key"):
        function, words = f"_ottla_{kind.replace('-', '_')}", keys(kind)
        out["bash"] += f'{function}() {{ compgen -W "{" ".join(words)}" -S = -- "$1"; }}\n'
        out["zsh"] += f"{function}() {{ compadd -S = -- {' '.join(words)} }}\n"
        out["fish"] += f"function {function}; string join \\n {' '.join(word + '=' for word in words)}; end\n"
    return out


def keys(kind: str) -> list[str]:
    """The configuration keys a value may begin with."""
    from ottla.config.definitions import BROKER_KEYS, TOPIC_KEYS

    table = {"broker-key": BROKER_KEYS, "topic-key": TOPIC_KEYS}[kind]
    return sorted(name for name, key in table.items() if not key.internal)


def print_names(words: list[str]) -> None:
    """What `ottla __names KIND WORD...` prints: a name a line, nothing if they cannot be had at once."""
    import signal

    # A shell waits for this: neither an error nor a broker that hangs is shown to somebody who presses Tab.
    signal.signal(signal.SIGALRM, lambda *_: os._exit(0))
    signal.setitimer(signal.ITIMER_REAL, _PATIENCE_S)
    try:
        found = _names(words[0], _namespace(words[1:]))
    except Exception:  # noqa: BLE001 - whatever it is, there is nothing to offer
        return
    print("\n".join(name for name in found if _HARMLESS.fullmatch(name)))


def _namespace(words: list[str]) -> argparse.Namespace:
    import argparse

    given = argparse.Namespace(property=[], **dict.fromkeys(_WHERE.values()))
    for flag, value in itertools.pairwise(_rejoined(words)):
        if flag in _WHERE:
            setattr(given, _WHERE[flag], value)
        elif flag in ("-X", "--property"):
            given.property.append(value)
    return given


def _rejoined(words: list[str]) -> list[str]:
    """Bash takes words apart at colons and equals signs: `-b h:1` comes as `-b h : 1`."""
    out: list[str] = []
    for word in words:
        if out and (word in (":", "=") or out[-1].endswith((":", "="))):
            out[-1] += word
        else:
            out.append(word)
    return out


def _names(kind: str, args: argparse.Namespace) -> list[str]:
    from ottla.cli.client import admin

    if kind == "pipeline":
        from ottla.cli.pipeline.command import state_root
        from ottla.spark.pipeline.run.state import homes

        return sorted(home.name for home in homes(state_root(args)))
    if kind == "profile":
        from ottla.cli.profile import names

        return names()
    with admin(args) as client:
        if kind == "group":
            return sorted(group.group_id for group in client.list_groups())
        return sorted(topic.name for topic in client.list_topics() if not topic.is_internal)


def _run(args: argparse.Namespace) -> None:
    print(script(args.shell))


COMMAND = Command(
    "completion",
    "print the completion script of a shell",
    argument("shell", choices=SHELLS, help="which shell"),
    run=_run,
    details=_INSTALL,
)
