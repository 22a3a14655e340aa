"""The cluster as the metadata log describes it: records, the immutable image they add up to, snapshots of it."""
