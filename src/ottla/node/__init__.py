"""The composition root: configuration to a running node, and its life cycle."""
