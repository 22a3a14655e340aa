"""What consumer, share and streams groups have in common."""
