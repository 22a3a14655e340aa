"""A client's and a server's side of an exchange, joined."""

from ottla.security.sasl.mechanisms import SaslClient, SaslServer


def exchange(client: SaslClient, server: SaslServer) -> list[bytes]:
    """All messages in turn, until both are complete; SaslError of whichever fails."""
    sent = []
    response = client.evaluate(None)
    while response is not None:
        sent.append(response)
        challenge = server.evaluate(response)
        sent.append(challenge)
        response = None if client.complete else client.evaluate(challenge)
    assert client.complete
    assert server.complete
    return sent
