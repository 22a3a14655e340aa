"""`ottla completion bash|zsh|fish`: a script that lets the shell complete commands, options, keys and names.

The scripts come from the declarations of the commands, so a new option is completed without further ado. Commands,
options and keys stand in them; for the names of topics, groups, pipelines and profiles they ask `ottla __names KIND`
with what has been typed so far, so that -b and --profile count. Who does not answer within two seconds has no names.
"""

from __future__ import annotations

import itertools
import os
from typing import TYPE_CHECKING

from ottla.cli.args import Argument, Command, argument

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterator

_INSTALL = """\
  bash   ottla completion bash > ~/.local/share/bash-completion/completions/ottla
  zsh    ottla completion zsh > ~/.zfunc/_ottla          (with ~/.zfunc in $fpath)
  fish   ottla completion fish > ~/.config/fish/completions/ottla.fish"""


class Node:
    """A command in the tree: the words that lead to it, and what may follow."""

    def __init__(self, path: tuple[str, ...], summary: str, command: Command | None) -> None:
        self.path = path
        self.summary = summary
        self.command = command
        self.children: list[Node] = []

    @property
    def arguments(self) -> tuple[Argument, ...]:
        return self.command.arguments if self.command is not None else ()

    @property
    def options(self) -> list[Argument]:
        return [declared for declared in self.arguments if declared.is_option]

    @property
    def positional(self) -> Argument | None:
        return next((declared for declared in self.arguments if not declared.is_option), None)

    def walk(self) -> Iterator[Node]:
        """This node and all below."""
        yield self
        for child in self.children:
            yield from child.walk()


def tree() -> Node:
    """All commands; imports every module that declares one."""
    from ottla.cli.main import COMMANDS, load

    root = Node((), "", None)
    for name, (_, summary) in COMMANDS.items():
        root.children.append(_grow((name,), load(name), summary))
    return root


def _grow(path: tuple[str, ...], command: Command, summary: str) -> Node:
    node = Node(path, summary, command)
    for name, under in command.commands.items():
        node.children.append(_grow((*path, name), under, under.summary))
    return node


def keys(kind: str) -> list[str]:
    """The configuration keys a value may begin with."""
    from ottla.config.definitions import BROKER_KEYS, TOPIC_KEYS

    table = {"broker-key": BROKER_KEYS, "topic-key": TOPIC_KEYS}[kind]
    return sorted(name for name, key in table.items() if not key.internal)


# -- names ----------------------------------------------------------------------------------------------------

NAMES = ("topic", "group", "pipeline", "profile")
NAMES_COMMAND = "__names"
_PATIENCE_S = 2.0
# Options whose values say where the names are.
_WHERE = {
    "-b": "bootstrap_server",
    "--bootstrap-server": "bootstrap_server",
    "--command-config": "command_config",
    "--profile": "profile",
    "--state-dir": "state_dir",
}


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
    print("\n".join(found))


def _namespace(words: list[str]) -> argparse.Namespace:
    import argparse

    given = argparse.Namespace(property=[], **dict.fromkeys(_WHERE.values()))
    for flag, value in itertools.pairwise(words):
        if flag in _WHERE:
            setattr(given, _WHERE[flag], value)
        elif flag in ("-X", "--property"):
            given.property.append(value)
    return given


def _names(kind: str, args: argparse.Namespace) -> list[str]:
    from ottla.cli.client import admin

    if kind == "pipeline":
        from ottla.cli.pipeline.command import state_root
        from ottla.spark.pipeline.state import homes

        return sorted(home.name for home in homes(state_root(args)))
    if kind == "profile":
        from ottla.cli.profile import names

        return names()
    with admin(args) as client:
        if kind == "group":
            return sorted(group.group_id for group in client.list_groups())
        return sorted(topic.name for topic in client.list_topics() if not topic.is_internal)


# -- bash -----------------------------------------------------------------------------------------------------


def bash_script(root: Node) -> str:
    """For bash 3.2 and later, without the bash-completion package."""
    cases = "\n".join(_bash_case(node) for node in root.walk())
    broker_keys, topic_keys = " ".join(keys("broker-key")), " ".join(keys("topic-key"))
    return f"""\
# bash completion for ottla; made by `ottla completion bash`
_ottla_broker_keys="{broker_keys}"
_ottla_topic_keys="{topic_keys}"
_ottla_groups=" {" ".join("/".join(node.path) for node in root.walk() if node.children and node.path)} "

_ottla_keys() {{
    COMPREPLY=($(compgen -W "$1" -S = -- "$2"))
    compopt -o nospace 2>/dev/null
}}

_ottla_names() {{
    local names IFS=$'\n'
    names="$("${{COMP_WORDS[0]}}" {NAMES_COMMAND} "$1" "${{COMP_WORDS[@]:1:COMP_CWORD-1}}" 2>/dev/null)"
    COMPREPLY=($(compgen -W "$names" -- "$2"))
}}

_ottla() {{
    local cur="${{COMP_WORDS[COMP_CWORD]}}" prev="" path="" word i
    ((COMP_CWORD > 0)) && prev="${{COMP_WORDS[COMP_CWORD-1]}}"
    COMPREPLY=()
    for ((i = 1; i < COMP_CWORD; i++)); do
        word="${{COMP_WORDS[i]}}"
        case "$word" in -*) continue ;; esac
        if [[ -z "$path" ]]; then path="$word"; elif [[ "$_ottla_groups" == *" $path "* ]]; then path="$path/$word"; fi
    done
    case "$path" in
{cases}
    esac
}}
complete -F _ottla ottla"""


def _bash_case(node: Node) -> str:
    lines = [f'        "{"/".join(node.path)}")']
    values = [line for option in node.options if option.takes_value for line in _bash_value(option)]
    if values:
        lines += ['            case "$prev" in', *values, "            esac"]
    words = [child.path[-1] for child in node.children]
    words += [flag for option in node.options for flag in option.flags]
    lines.append(f'            COMPREPLY=($(compgen -W "{" ".join([*words, "--help"])}" -- "$cur"))')
    positional = node.positional
    if positional is not None:
        lines.append(f'            [[ "$cur" != -* ]] && {_bash_words(positional)}')
    return "\n".join([*lines, "            ;;"])


def _bash_value(option: Argument) -> list[str]:
    return [f"                {'|'.join(option.flags)}) {_bash_words(option)}; return ;;"]


def _bash_words(declared: Argument) -> str:
    if declared.choices:
        return f'COMPREPLY=($(compgen -W "{" ".join(declared.choices)}" -- "$cur"))'
    if declared.complete == "file":
        return 'COMPREPLY=($(compgen -f -- "$cur"))'
    if declared.complete == "dir":
        return 'COMPREPLY=($(compgen -d -- "$cur"))'
    if declared.complete in ("broker-key", "topic-key"):
        return f'_ottla_keys "$_ottla_{declared.complete.replace("-", "_")}s" "$cur"'
    if declared.complete in NAMES:
        return f'_ottla_names {declared.complete} "$cur"'
    return "COMPREPLY=()"


# -- zsh ------------------------------------------------------------------------------------------------------


def zsh_script(root: Node) -> str:
    """For zsh's completion system."""
    functions = "\n\n".join(_zsh_function(node) for node in root.walk())
    return f"""\
#compdef ottla
# zsh completion for ottla; made by `ottla completion zsh`
_ottla_broker_key() {{ compadd -S = -- {" ".join(keys("broker-key"))} }}
_ottla_topic_key() {{ compadd -S = -- {" ".join(keys("topic-key"))} }}
_ottla_names() {{
    local -a names
    names=("${{(@f)$($_ottla_command {NAMES_COMMAND} $1 ${{(Q)_ottla_typed}} 2>/dev/null)}}")
    compadd -a names
}}

{functions}

_ottla_begin() {{
    local _ottla_command=$words[1]
    local -a _ottla_typed=("${{(@)words[2,CURRENT-1]}}")
    _ottla "$@"
}}

if [ "$funcstack[1]" = "_ottla" ]; then _ottla_begin "$@"; else compdef _ottla_begin ottla; fi"""


def _zsh_function(node: Node) -> str:
    name = "_".join(("_ottla", *node.path)).replace("-", "_")
    if node.children:
        commands = " ".join(_zsh_quote(f"{child.path[-1]}:{child.summary}") for child in node.children)
        cases = "\n".join(
            f"                {child.path[-1]}) {'_'.join(('_ottla', *child.path)).replace('-', '_')} ;;"
            for child in node.children
        )
        return f"""{name}() {{
    local state line
    _arguments -C '1: :->command' '*:: :->rest'
    case $state in
        command) local -a commands; commands=({commands}); _describe command commands ;;
        rest)
            case $line[1] in
{cases}
            esac ;;
    esac
}}"""
    specs = [spec for declared in node.arguments for spec in _zsh_specs(declared)]
    arguments = " \\\n        ".join(["_arguments", *specs, "'--help[show the options]'"])
    return f"{name}() {{\n    {arguments}\n}}"


def _zsh_specs(declared: Argument) -> list[str]:
    action = _zsh_action(declared)
    if not declared.is_option:
        return [_zsh_quote(f"*:{declared.flags[0]}:{action}")]
    text = declared.help.replace("[", "(").replace("]", ")").replace(":", "\\:").replace("%%", "%")
    many = "*" if declared.kwargs.get("action") == "append" else ""
    value = f":value:{action}" if declared.takes_value else ""
    return [_zsh_quote(f"{many}{flag}[{text}]{value}") for flag in declared.flags]


def _zsh_action(declared: Argument) -> str:
    if declared.choices:
        return f"({' '.join(declared.choices)})"
    actions = {
        "file": "_files",
        "dir": "_files -/",
        "broker-key": "_ottla_broker_key",
        "topic-key": "_ottla_topic_key",
        **{kind: f"{{_ottla_names {kind}}}" for kind in NAMES},
    }
    return actions.get(declared.complete, " ")


def _zsh_quote(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


# -- fish -----------------------------------------------------------------------------------------------------


def fish_script(root: Node) -> str:
    """For fish."""
    lines = ["# fish completion for ottla; made by `ottla completion fish`", "complete -c ottla -f"]
    for node in root.walk():
        condition = _fish_condition(node)
        for child in node.children:
            lines.append(
                f"complete -c ottla -n {condition} -a {child.path[-1]} -d {_fish_quote(child.summary)}"
            )
        for declared in node.arguments:
            lines.append(f"complete -c ottla -n {condition} {_fish_argument(declared)}")
    return "\n".join(lines)


def _fish_condition(node: Node) -> str:
    if not node.path:
        return '"__fish_use_subcommand"'
    seen = "; and ".join(f"__fish_seen_subcommand_from {word}" for word in node.path)
    if node.children:
        seen += f"; and not __fish_seen_subcommand_from {' '.join(child.path[-1] for child in node.children)}"
    return f'"{seen}"'


def _fish_argument(declared: Argument) -> str:
    parts = []
    for flag in declared.flags if declared.is_option else ():
        parts.append(f"-l {flag[2:]}" if flag.startswith("--") else f"-s {flag[1:]}")
    if declared.is_option and declared.takes_value:
        parts.append("-r")
    if declared.choices:
        parts.append(f"-a {_fish_quote(' '.join(declared.choices))}")
    elif declared.complete == "dir":
        parts.append("-a '(__fish_complete_directories)'")
    elif declared.complete == "file":
        parts.append("-F")
    elif declared.complete in NAMES:
        parts.append(
            f"-a '(ottla {NAMES_COMMAND} {declared.complete} (commandline -opc)[2..-1] 2>/dev/null)'"
        )
    elif declared.complete:
        parts.append(f"-a {_fish_quote(' '.join(name + '=' for name in keys(declared.complete)))}")
    parts.append(f"-d {_fish_quote(declared.help.replace('%%', '%'))}")
    return " ".join(parts)


def _fish_quote(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


SHELLS: dict[str, Callable[[Node], str]] = {"bash": bash_script, "zsh": zsh_script, "fish": fish_script}


def _run(args: argparse.Namespace) -> None:
    print(SHELLS[args.shell](tree()))


COMMAND = Command(
    "completion",
    "print the completion script of a shell",
    argument("shell", choices=tuple(SHELLS), help="which shell"),
    run=_run,
    details=_INSTALL,
)
