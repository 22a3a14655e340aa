"""A real broker inside a test: started in a moment, gone without a trace."""

from ottla.testing.broker import Broker

__all__ = ["Broker"]
