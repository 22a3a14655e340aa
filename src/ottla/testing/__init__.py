"""A real broker, a cluster of them, or a schema registry, inside a test: started in a moment, gone without a trace."""

from ottla.testing.broker import Broker
from ottla.testing.cluster import Cluster
from ottla.testing.registry import Registry

__all__ = ["Broker", "Cluster", "Registry"]
