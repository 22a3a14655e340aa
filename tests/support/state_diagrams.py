"""docs/states.md: the diagrams of the state machines, drawn from the tables that the code holds itself to.

    python -m tests.support.state_diagrams        # writes the page

A test holds the page to them.
"""

from collections.abc import Mapping
from enum import Enum
from pathlib import Path

from ottla.coordinator import runtime
from ottla.coordinator.group.classic import group as classic
from ottla.coordinator.group.consumer import group as consumer
from ottla.coordinator.group.consumer import member as consumer_member
from ottla.coordinator.group.share import group as share
from ottla.coordinator.group.streams import group as streams
from ottla.coordinator.group.streams import member as streams_member
from ottla.coordinator.transaction import metadata as transaction
from ottla.node import broker_lifecycle
from ottla.raft import state as raft
from ottla.share import partition
from ottla.share import state as share_state

PAGE = Path(__file__).resolve().parents[2] / "docs" / "states.md"
HEAD = """# States

Every state machine of Ottla says in a table which state may follow which, and refuses any other step. These diagrams
are drawn from those tables (`python -m tests.support.state_diagrams`); the modules named under each say what the
states mean.
"""

Table = Mapping[Enum, frozenset[Enum]]
MACHINES: dict[str, tuple[str, Table]] = {
    "A classic group": (classic.__name__, classic.TRANSITIONS),
    "A consumer group": (consumer.__name__, consumer.TRANSITIONS),
    "A member of a consumer group": (consumer_member.__name__, consumer_member.TRANSITIONS),
    "A share group": (share.__name__, share.TRANSITIONS),
    "A share partition": (partition.__name__, partition.SHARE_TRANSITIONS),
    "A record in a share partition": (share_state.__name__, share_state.TRANSITIONS),
    "A streams group": (streams.__name__, streams.TRANSITIONS),
    "A member of a streams group": (streams_member.__name__, streams_member.TRANSITIONS),
    "A transaction": (transaction.__name__, transaction.TRANSITIONS),
    "A shard of a coordinator": (runtime.__name__, runtime.TRANSITIONS),
    "A broker": (broker_lifecycle.__name__, broker_lifecycle.TRANSITIONS),
    "A voter of the metadata quorum": (raft.__name__, raft.TRANSITIONS),
}


def diagram(table: Table) -> str:
    """In mermaid, which GitHub draws; staying where it is goes without saying."""
    lines = ["```mermaid", "stateDiagram-v2"]
    for before in type(next(iter(table))):
        afters = table[before]
        lines += [
            f"    {_name(before)} --> {_name(after)}"
            for after in sorted(afters, key=_name)
            if after is not before
        ]
        lines += [f"    {_name(before)} --> [*]"] if not afters - {before} else []
    return "\n".join([*lines, "```"])


def _name(state: Enum) -> str:
    return "".join(word.capitalize() for word in state.name.split("_"))


def rendered() -> str:
    """The whole page."""
    parts = [
        f"## {title}\n\n`{module.replace('.', '/')}.py`\n\n{diagram(table)}\n"
        for title, (module, table) in MACHINES.items()
    ]
    return "\n".join([HEAD, *parts])


if __name__ == "__main__":
    PAGE.write_text(rendered())
