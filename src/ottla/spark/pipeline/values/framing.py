"""Values as the serializers of a schema registry write them (Confluent's wire format): recognised, not read.

Such a value is a zero byte, the schema's id in four bytes, and then the payload. No codec here reads that: no JSON
text and no Protobuf message begins with a zero, and an Avro record that does rarely fits. Only what did not parse is
looked at, so a value that parses is never taken for one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import Column

MAGIC = 0
FRAME_BYTES = 5
MAX_ID = 2**31 - 1
_WHAT = "begins like a Confluent-framed value (magic byte 0, schema id "
_ADVICE = (
    "): a topic is read as plain json, avro or protobuf, without a schema registry; read it with format='raw' and "
    f"decode substring(value, {FRAME_BYTES + 1}), or have it written without the registry's serializer"
)


def framed(value: bytes) -> str | None:
    """What to say of a value that did not parse and begins with such a frame; None for all others."""
    schema_id = int.from_bytes(value[1:FRAME_BYTES])
    if len(value) < FRAME_BYTES or value[0] != MAGIC or not 0 < schema_id <= MAX_ID:
        return None
    return f"{_WHAT}{schema_id}{_ADVICE}"


def framed_column(value: Column) -> Column:
    """The same, computed by Spark."""
    from pyspark.sql import functions as F

    schema_id = F.conv(F.hex(F.substring(value, 2, FRAME_BYTES - 1)), 16, 10).cast("bigint")
    is_framed = (
        (F.length(value) >= FRAME_BYTES)
        & (F.substring(value, 1, 1) == F.lit(bytes([MAGIC])))
        & schema_id.between(1, MAX_ID)
    )
    return F.when(is_framed, F.concat(F.lit(_WHAT), schema_id.cast("string"), F.lit(_ADVICE)))
