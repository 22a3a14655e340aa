"""Transactions: the machine over __transaction_state (KIP-98, KIP-890)."""
