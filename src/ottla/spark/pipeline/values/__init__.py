"""Values of records by a schema: JSON, Avro, Protobuf, text, or as they are.

A codec is made from a declaration without Spark (its schema is parsed, so a wrong one is found early) and gives
Spark columns later. Rules: a value that does not parse never raises inside a task; it becomes an error text
beside the data, and whoever reads decides. Codecs are pickled into tasks, so they hold plain data only.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from ottla.spark.pipeline.declare import DeclarationError

if TYPE_CHECKING:
    from pyspark.sql import Column
    from pyspark.sql.types import StructType

    from ottla.spark.pipeline.declare import Topic
    from ottla.spark.pipeline.values.verdicts import Verdicts


class Codec(Protocol):
    """How values become columns and columns values."""

    @property
    def columns(self) -> StructType | None:
        """What a value holds; None where a writer takes whatever rows it gets."""

    @property
    def is_framed(self) -> bool:
        """Whether values have the frame that names a registry's schema."""

    @property
    def can_fail_to_write(self) -> bool:
        """Whether `encode` may give an error."""

    def parse(self, value: Column, verdicts: Verdicts | None = None) -> Column:
        """A binary column as one struct column, to be computed once and then asked for `error` and `fields`.

        `verdicts`: where a stream and its dead letters read the same records, what they hold of schema ids."""

    def error(self, parsed: Column) -> Column:
        """Why a value did not parse; null where it did."""

    def exact_error(self, parsed: Column) -> Column:
        """The same where `parse` has found the exact reason; null where it takes `explain`."""

    def difference(self, value: Column, parsed: Column) -> Column | None:
        """How records that are looked at differ from the schema (`changes`); None where that is not to be seen."""

    def fields(self, parsed: Column) -> list[Column]:
        """The columns, under their names."""

    def encode(self, row: Column, columns: StructType) -> Column:
        """A struct column as a struct of `value` (binary) and `error`."""

    def refuse(self, columns: StructType) -> list[str]:
        """Why rows of these columns cannot be written: one line a reason, none if they can."""

    def explain(self, value: bytes) -> str:
        """Why a value does not parse; slow and exact."""


def codec(topic: Topic, form: str, base_dir: Path, *, writing: bool) -> Codec | None:
    """The codec of a topic's values, None for raw ones; DeclarationError where the schema is wrong."""
    if topic.registry is not None:
        from ottla.spark.pipeline.values.registry import registry_codec

        return registry_codec(topic, form, base_dir, writing=writing)
    if topic.registry_options or topic.subject is not None:
        raise DeclarationError("registry_options and subject are about a registry: say registry='http://...'")
    if form == "raw":
        if topic.schema is not None:
            raise DeclarationError("schema: format='raw' takes none")
        return None
    if form == "string":
        from ottla.spark.pipeline.values.json import TextCodec

        if topic.schema is not None:
            raise DeclarationError("schema: format='string' takes none")
        return TextCodec()
    if form == "json":
        from ottla.spark.pipeline.values.json import json_codec

        return json_codec(topic.schema, writing=writing)
    if form == "avro":
        from ottla.spark.pipeline.values.avro import avro_codec

        return avro_codec(topic.schema, base_dir, writing=writing)
    from ottla.spark.pipeline.values.protobuf import protobuf_codec

    return protobuf_codec(topic.schema, topic.message, base_dir)
