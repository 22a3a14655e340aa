"""Listeners: where the node listens, what it advertises to clients, and how each is secured.

Pure parsing of `listeners`, `advertised.listeners` and `listener.security.protocol.map`.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ottla.config.errors import ConfigError
from ottla.config.types import SECURITY_PROTOCOLS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

_ENDPOINT = r"(.*)://\[?([0-9a-zA-Z\-%._:]*)\]?:(-?[0-9]+)"
MAX_PORT = 65535


class Listener:
    """One entry of `listeners` or `advertised.listeners`; an empty host means every interface."""

    __slots__ = ("host", "name", "port", "security_protocol")

    def __init__(self, name: str, security_protocol: str, host: str, port: int) -> None:
        self.name = name
        self.security_protocol = security_protocol
        self.host = host
        self.port = port

    def _key(self) -> tuple[str, str, str, int]:
        return (self.name, self.security_protocol, self.host, self.port)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Listener) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.name}://{host}:{self.port}"

    def __repr__(self) -> str:
        return f"Listener({self}, {self.security_protocol})"


def listener_name_of(entry: str) -> str:
    """The name in front of an entry such as PLAINTEXT://:9092, in capitals; empty if there is none."""
    return entry.partition(":")[0].strip().upper() if ":" in entry else ""


def split_endpoint(entry: str) -> tuple[str, str, int]:
    """Name, host and port of one entry, or ConfigError."""
    matched = re.fullmatch(_ENDPOINT, entry)
    if not matched:
        raise ConfigError(
            f"Unable to parse {entry} to a broker endpoint", reason="a list of NAME://host:port", value=entry
        )
    name, host, port = matched.groups()
    if not -1 <= int(port[:9]) <= MAX_PORT:
        raise ConfigError(
            f"Unable to parse {entry} to a broker endpoint", reason="a port from 0 to 65535", value=entry
        )
    return name.upper(), host, int(port)


def split_address(entry: str) -> tuple[str, int]:
    """Host and port of an entry that was checked: host:port or NAME://host:port, IPv6 in brackets."""
    host, _, port = entry.rpartition("://")[2].rpartition(":")
    return host.strip("[]"), int(port)


def parse_protocol_map(text: str) -> dict[str, str]:
    """Listener name to security protocol, names in capitals."""
    mapped: dict[str, str] = {}
    for pair in filter(None, (part.strip() for part in text.split(","))):
        name, colon, protocol = (part.strip() for part in pair.rpartition(":"))
        if not colon:
            raise ConfigError(
                f"Error parsing configuration property 'listener.security.protocol.map': {pair}",
                "listener.security.protocol.map",
                reason="a list of NAME:PROTOCOL",
                value=text,
            )
        if protocol.upper() not in SECURITY_PROTOCOLS:
            raise ConfigError(
                f"Invalid security protocol `{protocol}` defined in listener.security.protocol.map",
                "listener.security.protocol.map",
                reason=f"a protocol among {', '.join(SECURITY_PROTOCOLS)}",
                value=text,
            )
        mapped[name.upper()] = protocol.upper()
    return mapped


def parse_listeners(
    key: str, entries: Sequence[str], protocols: Mapping[str, str], *, distinct_ports: bool
) -> tuple[Listener, ...]:
    """The listeners of a key, or ConfigError naming it."""
    try:
        listeners = tuple(_listener(entry, protocols) for entry in entries)
        _check_names(listeners, entries)
        if distinct_ports:
            _check_ports(listeners, entries)
    except ConfigError as error:
        raise ConfigError(
            f"Error creating broker listeners from '[{', '.join(entries)}]': {error}",
            key,
            reason=error.reason or str(error),
            value=",".join(entries),
        ) from None
    return listeners


def _listener(entry: str, protocols: Mapping[str, str]) -> Listener:
    name, host, port = split_endpoint(entry)
    protocol = protocols.get(name)
    if protocol is None:
        raise ConfigError(
            f"No security protocol defined for listener {name}",
            reason=f"{name} in listener.security.protocol.map too",
        )
    return Listener(name, protocol, host, port)


def _check_names(listeners: Iterable[Listener], entries: Sequence[str]) -> None:
    names = [listener.name for listener in listeners]
    if len(set(names)) != len(names):
        raise ConfigError(
            f"Each listener must have a different name, listeners: [{', '.join(entries)}]",
            reason="a different name for each listener",
        )


def _check_ports(listeners: Iterable[Listener], entries: Sequence[str]) -> None:
    """A port may be used twice only if one address is IPv4 and the other IPv6 (KIP-797)."""
    by_port: dict[int, list[Listener]] = {}
    for listener in listeners:
        if listener.port != 0:
            by_port.setdefault(listener.port, []).append(listener)
    for port, sharing in by_port.items():
        if len(sharing) > 1 and sorted(map(_ip_version, sharing)) != [4, 6]:
            raise ConfigError(
                f"Each listener must have a different port, listeners: [{', '.join(entries)}], port: {port}",
                reason=f"a different port for each listener, but {port} is there {len(sharing)} times",
            )


def _ip_version(listener: Listener) -> int:
    import ipaddress

    try:
        return ipaddress.ip_address(listener.host).version
    except ValueError:
        return 0
