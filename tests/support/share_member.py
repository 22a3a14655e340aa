"""A member of a share group over a plain socket: nothing is tried again, nothing is papered over."""

from __future__ import annotations

import time
import uuid
from typing import Any

from tests.interop.process import ServerProcess
from tests.interop.scripts.entities import decode_response, encode_request
from tests.support.raw_client import Endpoint, RawClient, uncompressed_batches

FIND_COORDINATOR, HEARTBEAT, FETCH, ACKNOWLEDGE, ALTER_CONFIGS = 10, 76, 78, 79, 44
GROUP_RESOURCE = 32
ACCEPT, RELEASE, REJECT, RENEW = 1, 2, 3, 4
DEADLINE_S = 30.0

Runs = list[tuple[int, int, int]]


class ShareMember:
    """A member of a share group on a connection of its own to the partitions' leader.

    Where the group is coordinated by another broker, it has one to that as well.
    """

    def __init__(
        self, node: ServerProcess | Endpoint, group: str, topic: str, topic_id: uuid.UUID, partitions: int = 1
    ) -> None:
        self.client = RawClient(node)
        self._leader_port = node.port
        self._coordinator: RawClient | None = None
        self.group = group
        self.topic = topic
        self.topic_id = topic_id
        self.partitions = partitions
        self.member_id = str(uuid.uuid4())
        self.member_epoch = 0
        self.epoch = 0

    def join(self) -> ShareMember:
        """Until every partition is assigned."""
        deadline = time.monotonic() + DEADLINE_S
        while time.monotonic() < deadline:
            if self._coordinator is None:
                self._find_coordinator()
            answer = (self._coordinator or self.client).ask(
                HEARTBEAT,
                1,
                {
                    "group_id": self.group,
                    "member_id": self.member_id,
                    "member_epoch": self.member_epoch,
                    "rack_id": None,
                    "subscribed_topic_names": [self.topic],
                },
            )
            if answer["error_code"] == "none":
                self.member_epoch = answer["member_epoch"]
                assigned = (answer["assignment"] or {}).get("topic_partitions") or []
                if sum(len(entry["partitions"]) for entry in assigned) == self.partitions:
                    return self
            time.sleep(0.05)  # until the next heartbeat, as a member waits
        raise AssertionError(f"not assigned: {answer}")

    def _find_coordinator(self) -> None:
        """None as long as nobody is it: whoever is asked instead says so."""
        answer = self.client.ask(FIND_COORDINATOR, 4, {"key_type": 0, "coordinator_keys": [self.group]})
        found = answer["coordinators"][0]
        if found["error_code"] == "none":
            here = found["port"] == self._leader_port
            self._coordinator = self.client if here else RawClient(Endpoint(found["host"], found["port"]))

    def close(self) -> None:
        """Vanish: nobody is told."""
        self.client.close()
        if self._coordinator is not None:
            self._coordinator.close()

    def fetch(
        self,
        acks: dict[int, Runs] | None = None,
        *,
        wait_ms: int = 5_000,
        records: int = 500,
        close: bool = False,
    ) -> dict[str, Any]:
        answer = self.client.ask(FETCH, 2, self.fetch_body(acks, wait_ms, records, close=close))
        assert answer["error_code"] == "none", answer
        self.epoch += 1
        return answer

    def begin_fetch(self, wait_ms: int) -> None:
        """Send a fetch whose answer is received later."""
        self.client.send(encode_request(FETCH, 2, self.fetch_body(wait_ms=wait_ms)))
        self.epoch += 1

    def end_fetch(self) -> dict[str, Any]:
        return decode_response(FETCH, 2, self.client.receive())

    def fetch_body(
        self,
        acks: dict[int, Runs] | None = None,
        wait_ms: int = 5_000,
        records: int = 500,
        *,
        close: bool = False,
    ) -> dict[str, Any]:
        named = range(self.partitions) if self.epoch == 0 and not close else sorted(acks or {})
        partitions = [
            {"partition_index": p, "acknowledgement_batches": _batches((acks or {}).get(p, []))}
            for p in named
        ]
        return {
            "group_id": self.group,
            "member_id": self.member_id,
            "share_session_epoch": -1 if close else self.epoch,
            "max_wait": wait_ms,
            "min_bytes": 1,
            "max_bytes": 1 << 20,
            "max_records": records,
            "batch_size": 500,
            "share_acquire_mode": 0,
            "is_renew_ack": False,
            "topics": [{"topic_id": self.topic_id, "partitions": partitions}] if named else [],
            "forgotten_topics_data": [],
        }

    def close_body(self) -> dict[str, Any]:
        """A ShareAcknowledge that acknowledges nothing and closes the session."""
        return {
            "group_id": self.group,
            "member_id": self.member_id,
            "share_session_epoch": -1,
            "is_renew_ack": False,
            "topics": [],
        }

    def beat(self, client: RawClient, epoch: int) -> str:
        """A heartbeat on any connection, -1 to leave; its error."""
        body = {"group_id": self.group, "member_id": self.member_id, "member_epoch": epoch}
        answer = client.ask(HEARTBEAT, 1, {**body, "rack_id": None, "subscribed_topic_names": None})
        error: str = answer["error_code"]
        return error

    def take(self, acks: dict[int, Runs] | None = None, **options: Any) -> dict[int, list[Any]]:
        """Fetch until there is something: partition, [(first, last, delivery count), ...] and the values."""
        deadline = time.monotonic() + DEADLINE_S
        while time.monotonic() < deadline:
            answer = self.fetch(acks, **options)
            acks = None
            found = {
                p["partition_index"]: [_runs(p), _values(p)]
                for topic in answer["responses"]
                for p in topic["partitions"]
                if p["acquired_records"]
            }
            if found:
                return found
        raise AssertionError(f"nothing to take: {answer}")

    def acknowledge(self, acks: dict[int, Runs], *, renew: bool = False) -> dict[int, str]:
        answer = self.client.ask(
            ACKNOWLEDGE,
            2,
            {
                "group_id": self.group,
                "member_id": self.member_id,
                "share_session_epoch": self.epoch,
                "is_renew_ack": renew,
                "topics": [
                    {
                        "topic_id": self.topic_id,
                        "partitions": [
                            {"partition_index": p, "acknowledgement_batches": _batches(said)}
                            for p, said in acks.items()
                        ],
                    }
                ],
            },
        )
        assert answer["error_code"] == "none", answer
        self.epoch += 1
        return {p["partition_index"]: p["error_code"] for t in answer["responses"] for p in t["partitions"]}


def _batches(said: Runs) -> list[dict[str, Any]]:
    return [
        {"first_offset": first, "last_offset": last, "acknowledge_types": [kind]}
        for first, last, kind in said
    ]


def _runs(partition: dict[str, Any]) -> Runs:
    return [(r["first_offset"], r["last_offset"], r["delivery_count"]) for r in partition["acquired_records"]]


def _values(partition: dict[str, Any]) -> list[bytes | None]:
    return [value for _, _, values in uncompressed_batches(partition["records"]) for value in values]


def configure(client: RawClient, group: str, **values: object) -> None:
    configs = [
        {"name": f"share.{key.replace('_', '.')}", "config_operation": 0, "value": str(value)}
        for key, value in values.items()
    ]
    resource = {"resource_type": GROUP_RESOURCE, "resource_name": group, "configs": configs}
    answer = client.ask(ALTER_CONFIGS, 1, {"resources": [resource], "validate_only": False})
    assert answer["responses"][0]["error_code"] == "none", answer
