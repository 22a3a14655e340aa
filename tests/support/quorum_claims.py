"""Claims of a stranger to the metadata quorum, as Vote, BeginQuorumEpoch and EndQuorumEpoch carry them."""

from __future__ import annotations

from typing import Any

from tests.support.raw_client import RawClient

VOTE, BEGIN_QUORUM_EPOCH, END_QUORUM_EPOCH, DESCRIBE_QUORUM = 52, 53, 54, 55
CLAIMS = {"Vote": VOTE, "BeginQuorumEpoch": BEGIN_QUORUM_EPOCH, "EndQuorumEpoch": END_QUORUM_EPOCH}
METADATA_TOPIC = "__cluster_metadata"
STRANGER = 9


def claim(client: RawClient, api_key: int, epoch: int) -> dict[str, Any]:
    """The partition's answer to a claim of this epoch."""
    if api_key == VOTE:
        fields = {"replica_epoch": epoch, "replica_id": STRANGER, "last_offset_epoch": 0, "last_offset": 0}
    else:
        fields = {"leader_id": STRANGER, "leader_epoch": epoch}
    topics = [{"topic_name": METADATA_TOPIC, "partitions": [{"partition_index": 0, **fields}]}]
    found: dict[str, Any] = client.ask(api_key, 0, {"topics": topics})["topics"][0]["partitions"][0]
    return found


def leader_epoch(client: RawClient) -> int | None:
    """The epoch in which this node leads; None if it does not."""
    topics = [{"topic_name": METADATA_TOPIC, "partitions": [{"partition_index": 0}]}]
    found = client.ask(DESCRIBE_QUORUM, 0, {"topics": topics})["topics"][0]["partitions"][0]
    epoch: int = found["leader_epoch"]
    return epoch if found["error_code"] == "none" else None
