"""The identifiers that travel through every layer, as types the checker tells apart, and the names of topics."""

import base64
import binascii
import os
import re
from typing import NamedTuple, NewType

NodeId = NewType("NodeId", int)
ProducerId = NewType("ProducerId", int)

# A Kafka UUID is sixteen raw bytes: hashing and comparing bytes is what the hot path does with it,
# and uuid.UUID costs a microsecond to make.
Uuid = NewType("Uuid", bytes)

ZERO_UUID = Uuid(bytes(16))
METADATA_TOPIC_ID = Uuid(bytes(15) + b"\x01")

NO_PRODUCER_ID = ProducerId(-1)
NO_PRODUCER_EPOCH = -1
NO_SEQUENCE = -1
NO_TIMESTAMP = -1
NO_LEADER_EPOCH = -1
NO_OFFSET = -1

MAX_NAME_LENGTH = 249
INTERNAL_TOPICS = frozenset({"__consumer_offsets", "__transaction_state", "__share_group_state"})

_LEGAL_NAME = re.compile(r"[a-zA-Z0-9._-]+")


class TopicPartition(NamedTuple):
    """A partition, by its topic's name."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


def random_uuid() -> Uuid:
    """A fresh id that is none of the reserved ones and, as in Kafka, never prints with a leading dash."""
    while True:
        raw = bytearray(os.urandom(16))
        raw[6] = (raw[6] & 0x0F) | 0x40
        raw[8] = (raw[8] & 0x3F) | 0x80
        candidate = Uuid(bytes(raw))
        if not uuid_to_str(candidate).startswith("-"):
            return candidate


def uuid_to_str(value: Uuid) -> str:
    """Kafka prints its ids as URL-safe base64 without padding."""
    return base64.urlsafe_b64encode(value)[:22].decode("ascii")


def uuid_from_str(text: str) -> Uuid:
    """The reverse of uuid_to_str; ValueError for anything else."""
    if len(text) != 22:
        raise ValueError(f"{text!r} is not a Kafka id: it has {len(text)} characters, not 22")
    try:
        raw = base64.b64decode(text + "==", altchars=b"-_", validate=True)
    except (binascii.Error, ValueError) as error:
        raise ValueError(f"{text!r} is not a Kafka id: {error}") from None
    return Uuid(raw)


def next_session_epoch(epoch: int) -> int:
    """The next epoch of a fetch session or share session: they count from 1 and wrap back to 1 (KIP-227, KIP-932)."""
    return 1 if epoch == 2**31 - 1 else epoch + 1


def topic_name_problem(name: str) -> str | None:
    """Why this cannot be the name of a topic, in Kafka's words; None if it can."""
    reason = None
    if not name:
        reason = "the empty string is not allowed"
    elif name in (".", ".."):
        reason = f"'{name}' is not allowed"
    elif len(name) > MAX_NAME_LENGTH:
        reason = f"the length of '{name}' is longer than the max allowed length {MAX_NAME_LENGTH}"
    elif _LEGAL_NAME.fullmatch(name) is None:
        reason = f"'{name}' contains one or more characters other than ASCII alphanumerics, '.', '_' and '-'"
    return f"Topic name is invalid: {reason}" if reason is not None else None
