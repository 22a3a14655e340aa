"""The keys in docs/security.md, made of the code: python -m tests.support.security_keys writes them there."""

from __future__ import annotations

from pathlib import Path

from ottla.config.definitions import BROKER_KEYS
from ottla.config.effective import EFFECTIVE, OF_SECURITY
from ottla.config.keys.docs import documentation_of

PAGE = Path(__file__).parents[2] / "docs" / "security.md"
BEGIN, END = "<!-- every key: begin -->\n", "<!-- every key: end -->\n"

GROUPS: dict[str, tuple[str, ...]] = {
    "TLS": ("ssl.",),
    "Logins": ("sasl.", "connections.max.reauth.ms", "connection.failed.", "principal.builder.class"),
    "Between nodes": ("security.inter.broker.protocol", "listener.security.protocol.map"),
    "Who may do what": ("authorizer.", "super.users", "allow.everyone.", "early.start.listeners"),
    "Delegation tokens": ("delegation.token.",),
    "Quotas and connections": ("quota.", "controller.quota.", "client.quota.", "max.connection"),
    "Audit log": ("ottla.audit.",),
}
# What only authorizers read, and what Kafka has no documentation of.
_OWN = {
    "allow.everyone.if.no.acl.found": ("false", "Whether everybody may use what no ACL is about."),
    "super.users": ("", "Who may do everything: User:admin;User:node."),
}


def keys() -> list[str]:
    prefixes = tuple(prefix for group in GROUPS.values() for prefix in group)
    return sorted(key for key in EFFECTIVE | OF_SECURITY | _OWN.keys() if key.startswith(prefixes))


def rendered() -> str:
    lines: list[str] = []
    for title, prefixes in GROUPS.items():
        lines += [f"**{title}**", "", "| key | default | |", "|---|---|---|"]
        lines += [_row(key) for key in keys() if key.startswith(prefixes)]
        lines.append("")
    return "\n".join(lines)


def _row(key: str) -> str:
    if key in _OWN:
        default, words = _OWN[key]
    else:
        found = BROKER_KEYS[key].default
        default = ",".join(found) if isinstance(found, list | tuple) else str("" if found is None else found)
        default = default.lower() if isinstance(found, bool) else default
        words = documentation_of(key)
    shown = f"`{default}`" if default else ""
    return f"| `{key}` | {shown} | {words.replace('|', ' or ')} |"


def written() -> str:
    """What the page has."""
    return PAGE.read_text().partition(BEGIN)[2].partition(END)[0]


if __name__ == "__main__":
    before, _, rest = PAGE.read_text().partition(BEGIN)
    PAGE.write_text(before + BEGIN + rendered() + END + rest.partition(END)[2])
