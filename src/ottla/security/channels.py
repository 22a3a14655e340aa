"""How a connection is protected: by which of Kafka's security protocols, and what that takes on the side that connects.

A ChannelSecurity is made once, of Kafka's keys, and serves any number of connections: brokers' among themselves, and
clients'. Who it is to the other side comes out of it only as tokens. When a node's stores change while it runs, its
ChannelSecurity has another context, which connections take that are made from then on.
"""

import ssl
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from ottla.security.sasl.mechanisms import SaslClient

WITH_TLS: Final = frozenset({"SSL", "SASL_SSL"})
WITH_SASL: Final = frozenset({"SASL_PLAINTEXT", "SASL_SSL"})


@dataclass(slots=True)
class ChannelSecurity:
    """What a connection needs on top of its socket; nothing, if it is a plain one."""

    ssl_context: ssl.SSLContext | None = None
    mechanism: str = ""
    # With a host, whose name Kerberos has to know.
    new_exchange: Callable[[str], SaslClient] | None = field(default=None, repr=False)
    # Of which settings and files the context was made, for whoever has to know whether they are others by now.
    made_of: object = field(default=None, repr=False, compare=False)

    def current_context(self) -> ssl.SSLContext | None:
        """The context for a connection that is made now."""
        return self.ssl_context


PLAINTEXT: Final = ChannelSecurity()


class NodeChannels(NamedTuple):
    """How a node reaches the others of its cluster."""

    controllers: ChannelSecurity = PLAINTEXT
    brokers: ChannelSecurity = PLAINTEXT


PLAIN_CHANNELS: Final = NodeChannels()
