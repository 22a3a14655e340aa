"""A real broker, or a cluster of them, inside a test: started in a moment, gone without a trace."""

from ottla.testing.broker import Broker
from ottla.testing.cluster import Cluster

__all__ = ["Broker", "Cluster"]
