"""A valid request of every API and version, with something in every field: what a fuzzer starts from.

Made from kio's classes, so that a field somebody forgot to declare in Ottla is sent all the same.
"""

from __future__ import annotations

import dataclasses
import datetime
import enum
import io
import types
import typing
import uuid
from collections.abc import Mapping
from typing import Any

from kio.serial import entity_writer
from tests.interop.scripts.batches import Batch
from tests.interop.scripts.entities import frame, header_bytes, request_type

EPOCH = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
# By the end of a field's name: what makes a request reach further than its first check.
NUMBERS = {"acks": -1, "partition_max_bytes": 1000, "max_bytes": 1000, "num_partitions": 1}
TEXTS = {"group_id": "a-group", "host": "127.0.0.1", "cluster_id": "", "log_dir": "/nowhere"}


def specimen(
    api_key: int, version: int, topic: str, topic_id: uuid.UUID, values: Mapping[str, Any] | None = None
) -> bytes:
    """A whole frame that asks something about the topic; `values` are texts and numbers by names of fields."""
    cls = request_type(api_key, max(version, 3) if api_key == 0 else version)
    body = io.BytesIO()
    entity_writer(cls)(body, _Filler(topic, topic_id, values or {}).entity(cls))
    head = header_bytes(api_key, version, 7, "specimen", cls.__flexible__)
    return frame(head + body.getvalue())


class _Filler:
    def __init__(self, topic: str, topic_id: uuid.UUID, values: Mapping[str, Any]) -> None:
        self._topic = topic
        self._topic_id = topic_id
        self._values = {**NUMBERS, **TEXTS, **values}

    def entity(self, cls: Any) -> Any:
        hints = typing.get_type_hints(cls)
        return cls(**{f.name: self._value(f.name, hints[f.name]) for f in dataclasses.fields(cls)})

    def _value(self, name: str, hint: Any) -> Any:
        args = [a for a in typing.get_args(hint) if a is not types.NoneType]
        if isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union:
            hint = args[0]
        if typing.get_origin(hint) is tuple:
            inner = typing.get_args(hint)[0]
            return (self._value(name, inner),)
        if dataclasses.is_dataclass(hint):
            return self.entity(hint)
        return self._scalar(name, hint)

    def _scalar(self, name: str, hint: Any) -> Any:
        if issubclass(hint, datetime.timedelta):
            return datetime.timedelta(milliseconds=self._values.get(name, 10))
        if issubclass(hint, datetime.datetime):
            return EPOCH
        if issubclass(hint, uuid.UUID):
            return self._topic_id
        if issubclass(hint, enum.Enum):
            return hint(0)
        if issubclass(hint, bool):
            return False
        if issubclass(hint, bytes):
            return Batch().encode()
        if issubclass(hint, str):
            return self._values.get(name, self._topic)
        if issubclass(hint, float):
            return hint(float(self._values.get(name, 0.5)))
        return hint(self._values.get(name, 0))
