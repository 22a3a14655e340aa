"""From Kafka's `ssl.*` settings to TLS contexts: stores of keys and certificates, names, cipher suites.

Nothing but the standard library; the same for servers and clients. Start with `contexts`.
"""
