"""What is removed before two answers are compared: ids, clocks, addresses, and the order of unordered lists.

This is the only place where anything is masked. A mask says the API (None for all), the path of the field
(names joined by dots, list positions left out) and what to do with its value. What is not named here is
compared.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from tests.interop.scripts.batches import describe_records

Mask = Callable[[Any], Any]
# A random UUID (version 4): the zero id and the scripts' own are none.
RANDOM_ID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")


def hidden(what: str) -> Mask:
    """Any value at all."""
    return lambda value: f"<{what}>"


def present(what: str, *, absent: tuple[Any, ...] = (None, "", -1, 0)) -> Mask:
    """The value is hidden, but whether there is one is compared."""
    return lambda value: value if value in absent else f"<{what}>"


def text_or_null(value: Any) -> Any:
    """Messages for people are each project's own words; that there is one or none is compared."""
    return "<text>" if value else value


def how_many(value: Any) -> Any:
    """Only the length of a list."""
    return f"<{len(value)}>" if isinstance(value, list) else value


def clock(value: Any) -> Any:
    """A wall clock reading near now; fixed timestamps of the scripts lie far in the past."""
    return "<now>" if isinstance(value, int) and value > 1_750_000_000_000 else value


def stamped_batches(value: Any) -> Any:
    """Batches with the clock hidden; the CRC covers the timestamps, so it is hidden with them."""
    batches = describe_records(value)
    for batch in batches or []:
        if "base_timestamp" not in batch:
            continue
        if batch["producer_id"] >= 0:
            batch["producer_id"], batch["crc"] = "<producer>", "<crc>"
        stamped = any(clock(batch[name]) == "<now>" for name in ("base_timestamp", "max_timestamp"))
        batch["base_timestamp"] = clock(batch["base_timestamp"])
        batch["max_timestamp"] = clock(batch["max_timestamp"])
        if stamped:
            batch["crc"] = "<crc>"
    return batches


MASKS: list[tuple[int | None, str, Mask]] = [
    # Words for people.
    (None, r"(.*\.)?error_message", text_or_null),
    (None, r"(.*\.)?batch_index_error_message", text_or_null),
    (32, r"results\.configs\.documentation", text_or_null),
    (88, r"status\.status_detail", text_or_null),
    # Clocks.
    (0, r"responses\.partition_responses\.log_append_time", clock),
    (None, r"(.*\.)?timestamp", clock),
    (61, r"topics\.partitions\.active_producers\.last_timestamp", clock),
    *((key, r"(tokens\.)?(issue|expiry|max)_timestamp", clock) for key in (38, 39, 40, 41)),
    # Record data becomes a list of batches.
    (1, r"responses\.partitions\.records", stamped_batches),
    (78, r"responses\.partitions\.records", stamped_batches),
    # Ids that are random or count metadata records.
    (1, r"session_id", present("session")),
    (22, r"producer_id", present("producer", absent=(-1,))),
    (26, r"producer_id", present("producer", absent=(-1,))),
    (27, r"markers\.producer_id", hidden("producer")),
    (65, r"transaction_states\.producer_id", present("producer", absent=(-1, 0))),
    (65, r"transaction_states\.transaction_start_time", clock),
    (66, r"transaction_states\.producer_id", hidden("producer")),
    (1, r"responses\.partitions\.aborted_transactions\.producer_id", hidden("producer")),
    (61, r"topics\.partitions\.active_producers\.producer_id", hidden("producer")),
    *((key, r"(tokens\.)?(token_id|hmac)", present("token", absent=(None, "", b""))) for key in (38, 41)),
    (18, r"finalized_features_epoch", present("metadata offset")),
    (60, r"cluster_id", hidden("cluster")),
    (62, r"broker_epoch", present("broker epoch")),
    (55, r"nodes\.listeners\.port", hidden("port")),
    (55, r"(.*\.)?(replica_directory_id|log_end_offset|last_fetch_timestamp|last_caught_up_timestamp)",
     present("changing", absent=(None, -1))),
    (55, r"topics\.partitions\.(high_watermark|leader_epoch)", present("changing", absent=(None, -1))),
    # A controller of Kafka's resigns and is elected anew whenever a request meets a fault in it, and scripts
    # that ran before this one may have found some: the epoch counts them.
    *((key, r"topics\.partitions\.leader_epoch", present("changing", absent=(None, -1))) for key in (52, 53, 54)),
    (82, r"current_leader\.leader_epoch", present("changing", absent=(None, -1))),
    # Sets of numbers and names, in the order of a hash table.
    (68, r"assignment\.topic_partitions\.partitions", sorted),
    (69, r"groups\.members\.(target_)?assignment\.topic_partitions\.partitions", sorted),
    (69, r"groups\.members\.subscribed_topic_names", sorted),
    # Which partitions a member of a share group has depends on the topics' ids: the scripts compute it.
    (76, r"assignment\.topic_partitions\.partitions", how_many),
    (77, r"groups\.members\.assignment\.topic_partitions\.partitions", how_many),
    (77, r"groups\.members\.subscribed_topic_names", sorted),
    # Disks.
    (35, r"results\.(total_bytes|usable_bytes)", present("bytes")),
]  # fmt: skip

# Lists that Kafka fills from hash maps: compared as sets, sorted by these fields (by themselves if there are none).
UNORDERED: list[tuple[int, str, tuple[str, ...]]] = [
    (3, "brokers", ("node_id",)),
    (3, "topics", ("name", "topic_id")),
    (3, "topics.partitions", ("partition_index",)),
    (1, "responses", ("topic", "topic_id")),
    (2, "topics", ("name",)),
    (2, "topics.partitions", ("partition_index",)),
    (0, "responses", ("name", "topic_id")),
    (0, "responses.partition_responses", ("index",)),
    (19, "topics", ("name", "error_code")),
    (19, "topics.configs", ("name",)),
    (20, "responses", ("name", "topic_id")),
    (21, "topics", ("name",)),
    (21, "topics.partitions", ("partition_index",)),
    (8, "topics", ("name", "topic_id")),
    (8, "topics.partitions", ("partition_index", "error_code")),
    (9, "topics", ("name",)),
    (9, "topics.partitions", ("partition_index",)),
    (9, "groups.topics", ("name", "topic_id")),
    (9, "groups.topics.partitions", ("partition_index",)),
    (11, "members", ("member_id",)),
    (15, "groups", ("group_id",)),
    (15, "groups.members", ("member_id",)),
    (18, "api_keys", ("api_key",)),
    (18, "supported_features", ("name",)),
    (18, "finalized_features", ("name",)),
    (23, "topics", ("topic",)),
    (23, "topics.partitions", ("partition",)),
    (29, "resources", ("resource_type", "resource_name", "pattern_type")),
    (29, "resources.acls", ("principal", "host", "operation", "permission_type")),
    (32, "results", ("resource_type", "resource_name")),
    (32, "results.configs", ("name",)),
    (33, "responses", ("resource_type", "resource_name")),
    (34, "results", ("topic_name",)),
    (34, "results.partitions", ("partition_index",)),
    (35, "results", ("log_dir",)),
    (35, "results.topics", ("name",)),
    (35, "results.topics.partitions", ("partition_index",)),
    (37, "results", ("name",)),
    (41, "tokens", ("principal_name", "token_requester_principal_name", "renewers")),
    (42, "results", ("group_id",)),
    (43, "replica_election_results", ("topic",)),
    (43, "replica_election_results.partition_result", ("partition_id",)),
    (44, "responses", ("resource_type", "resource_name")),
    (45, "responses", ("name",)),
    (24, "results_by_transaction", ("transactional_id",)),
    (24, "results_by_transaction.topic_results", ("name",)),
    (24, "results_by_transaction.topic_results.results_by_partition", ("partition_index",)),
    (24, "results_by_topic_v3_and_below", ("name",)),
    (24, "results_by_topic_v3_and_below.results_by_partition", ("partition_index",)),
    (27, "markers.topics", ("name",)),
    (27, "markers.topics.partitions", ("partition_index",)),
    (28, "topics", ("name",)),
    (28, "topics.partitions", ("partition_index",)),
    (48, "entries", ("entity",)),
    (48, "entries.entity", ("entity_type",)),
    (48, "entries.values", ("key",)),
    (49, "entries", ("entity",)),
    (49, "entries.entity", ("entity_type",)),
    (50, "results", ("user",)),
    (50, "results.credential_infos", ("mechanism",)),
    (51, "results", ("user",)),
    (57, "results", ("feature",)),
    (65, "transaction_states.topics", ("topic",)),
    (65, "transaction_states.topics.partitions", ()),
    (66, "transaction_states", ("transactional_id",)),
    (61, "topics", ("name",)),
    (61, "topics.partitions.active_producers", ("producer_epoch", "last_sequence")),
    (68, "assignment.topic_partitions", ("topic_id",)),
    (69, "groups", ("group_id", "error_code")),
    (69, "groups.members", ("member_id",)),
    (69, "groups.members.assignment.topic_partitions", ("topic_name",)),
    (69, "groups.members.target_assignment.topic_partitions", ("topic_name",)),
    (76, "assignment.topic_partitions", ("topic_id",)),
    (77, "groups", ("group_id",)),
    (78, "responses", ("topic_id",)),
    (78, "responses.partitions", ("partition_index",)),
    (79, "responses", ("topic_id",)),
    (79, "responses.partitions", ("partition_index",)),
    (77, "groups.members", ("member_id",)),
    (77, "groups.members.assignment.topic_partitions", ("topic_name",)),
    *((key, "results", ("topic_id",)) for key in range(83, 88)),
    *((key, "results.partitions", ("partition",)) for key in range(83, 88)),
    (89, "groups", ("group_id", "error_code")),
    (89, "groups.members", ("member_id",)),
    (90, "groups.topics", ("topic_name",)),
    (90, "groups.topics.partitions", ("partition_index",)),
    (91, "responses", ("topic_name",)),
    (92, "responses", ("topic_name",)),
    (74, "config_resources", ("resource_type", "resource_name")),
]
_UNORDERED = {(api, path): key for api, path, key in UNORDERED}
_COMPILED = [(api, re.compile(pattern), mask) for api, pattern, mask in MASKS]


def masked(api_key: int, value: Any, symbols: dict[str, str], path: str = "") -> Any:
    """The value with every mask applied; `symbols` turns the ids and addresses of this server into names."""
    for api, pattern, mask in _COMPILED:
        if api in (None, api_key) and pattern.fullmatch(path):
            return mask(value)
    if isinstance(value, dict):
        return {
            name: masked(api_key, inner, symbols, f"{path}.{name}" if path else name)
            for name, inner in value.items()
        }
    if isinstance(value, list):
        items = [masked(api_key, item, symbols, path) for item in value]
        key = _UNORDERED.get((api_key, path))
        if key and all(isinstance(i, dict) for i in items):
            items.sort(key=lambda item: [str(item.get(name)) for name in key])
        elif key == ():
            items.sort()
        return items
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, str):
        return symbolic(value, symbols)
    if path.endswith("port"):
        return symbols.get(f":{value}", value)
    return value


def symbolic(text: str, symbols: dict[str, str]) -> str:
    """Replace the ids, directories and addresses that this server calls its own."""
    if text in symbols:
        return symbols[text]
    for known, name in symbols.items():
        if len(known) > 5 and known in text:
            text = text.replace(known, name)
    return RANDOM_ID.sub("<random id>", text)
