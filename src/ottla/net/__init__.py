"""Connections to other nodes, without I/O, and the drivers that give them sockets and time."""
