"""Sockets: accepting connections, frames in, answers out."""
