"""Groups of consumers, of share members and of streams, and the state that share groups keep."""
