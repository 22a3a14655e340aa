"""The share coordinator (KIP-932): what must last of every share partition, in __share_group_state."""
