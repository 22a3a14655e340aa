"""Classic groups: members join, their leader assigns, the coordinator keeps time."""
