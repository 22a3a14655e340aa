"""`ottla completion bash|zsh|fish`: a script that lets the shell complete commands, options and keys.

The scripts come from the declarations of the commands, so a new option is completed without further ado. They
are whole in themselves: pressing Tab starts no Python.
"""

from __future__ import annotations

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

{functions}

if [ "$funcstack[1]" = "_ottla" ]; then _ottla "$@"; else compdef _ottla ottla; fi"""


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
