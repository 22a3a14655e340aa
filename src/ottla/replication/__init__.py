"""Partitions as this broker holds them: leadership, in-sync replicas and the high watermark over a log."""
