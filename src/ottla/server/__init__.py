"""Connections, dispatch and the handlers of every API: from bytes on a socket to calls on the node's services."""
