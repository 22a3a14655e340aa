"""What a controller writes when it becomes active: the first records of a cluster, or the end of what a
predecessor left half done.

Rules: pure.
"""

from collections.abc import Sequence

from ottla.controller.feature_levels import min_isr_record
from ottla.metadata import features
from ottla.metadata.bootstrap import feature_level_of, metadata_version_of
from ottla.metadata.image import ClusterImage
from ottla.metadata.records import (
    AbortTransactionRecord,
    BeginTransactionRecord,
    EndTransactionRecord,
    MetadataRecord,
)


def activation_records(
    image: ClusterImage,
    transaction_start_offset: int,
    bootstrap: Sequence[MetadataRecord],
    default_min_isr: int,
) -> list[MetadataRecord]:
    """The records to append before anything else."""
    records: list[MetadataRecord] = []
    if transaction_start_offset >= 0:
        records.append(AbortTransactionRecord(reason="Controller failover"))
    if image.metadata_version is not None:
        return records
    in_transaction = features.transactions_supported(metadata_version_of(bootstrap))
    if in_transaction:
        records.append(BeginTransactionRecord(name="Bootstrap records"))
    records += bootstrap
    if feature_level_of(bootstrap, features.ELIGIBLE_LEADER_REPLICAS_VERSION) > 0:
        records.append(min_isr_record(str(default_min_isr)))
    if in_transaction:
        records.append(EndTransactionRecord())
    return records
