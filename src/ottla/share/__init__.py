"""Queues (KIP-932): share partitions, sessions, persister and share coordinator.

Read in the order in which a fetch passes them: manager (SharePartitionManager), sessions, fetch (DelayedShareFetch),
leader (the share partitions that this broker leads: I/O and timers), partition (SharePartition, pure), in_flight,
state, settings. Then what must last: persister, coordinator (of __share_group_state), groups (between the two
coordinators of a share group).
"""
