"""Share groups (KIP-932): members, the simple assignor, and how far the state of their share partitions is set up."""
