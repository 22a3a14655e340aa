"""Identity providers: their keys, for brokers, and their tokens, for clients (KIP-768, KIP-1139)."""
