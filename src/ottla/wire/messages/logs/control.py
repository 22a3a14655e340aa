"""Control records: ends of transactions, leader changes, voters, snapshots.

Declarations only, in the language of `ottla.wire.schema`.
"""

from ottla.model.ids import ZERO_UUID
from ottla.wire.schema import Int16, Int32, Int64, String, UInt16, UuidField, data, since, struct


@data(versions="0")
class AbortedTxn:
    """An entry of a segment's transaction index."""

    producer_id: Int64
    first_offset: Int64
    last_offset: Int64
    last_stable_offset: Int64


@data(versions="0")
class ControlRecordTypeSchema:
    """The key of a control record says which kind it is."""

    type: Int16


@data(versions="0")
class EndTxnMarker:
    """The value of a control record that ends a transaction."""

    coordinator_epoch: Int32


@data(versions="0", flexible="0+")
class KRaftVersionRecord:
    """The level of kraft.version from here on."""

    version: Int16
    kraft_version: Int16


@struct
class LeaderChangeMessageVoter:
    """A voter of the epoch."""

    voter_id: Int32
    voter_directory_id: UuidField = since(1, default=ZERO_UUID)


@data(versions="0-1", flexible="0+")
class LeaderChangeMessage:
    """The first record of a leader's epoch in the metadata log."""

    version: Int16
    leader_id: Int32
    voters: list[LeaderChangeMessageVoter]
    granting_voters: list[LeaderChangeMessageVoter]


@data(versions="0", flexible="0+")
class SnapshotFooterRecord:
    """The last record of a snapshot."""

    version: Int16


@data(versions="0", flexible="0+")
class SnapshotHeaderRecord:
    """The first record of a snapshot."""

    version: Int16
    last_contained_log_timestamp: Int64


@struct
class Endpoint:
    """An address of a voter."""

    name: String
    host: String
    port: UInt16


@struct
class KRaftVersionFeature:
    """The levels of kraft.version that the voter can do."""

    min_supported_version: Int16
    max_supported_version: Int16


@struct
class VotersRecordVoter:
    """A voter, where it can be reached, and what it can do."""

    voter_id: Int32
    voter_directory_id: UuidField
    endpoints: list[Endpoint]
    kraft_version_feature: KRaftVersionFeature


@data(versions="0", flexible="0+")
class VotersRecord:
    """The voters of the quorum from here on (KIP-853)."""

    version: Int16
    voters: list[VotersRecordVoter]
