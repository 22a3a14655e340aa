"""Queues (KIP-932): share partitions, sessions, persister and share coordinator.

Front to back: manager (a request comes in), sessions, fetch, leader (the share partitions that this broker leads),
partition (the pure machine), in_flight, state, settings; then persister, coordinator (what must last, in
__share_group_state) and groups.
"""
