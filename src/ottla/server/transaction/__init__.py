"""Transactions where partitions are led: verification, markers, producer ids."""
