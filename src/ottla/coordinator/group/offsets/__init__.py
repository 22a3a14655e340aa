"""Committed offsets of every kind of group."""
