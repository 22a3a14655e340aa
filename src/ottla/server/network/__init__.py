"""The network: accepting connections (SocketServer), frames in, answers out."""
