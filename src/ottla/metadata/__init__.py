"""The cluster as the metadata log tells it: records, the immutable image they add up to, snapshots of it."""
