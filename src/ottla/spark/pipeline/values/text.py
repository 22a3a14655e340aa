"""Values that are text: one column, `value`."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import Column
    from pyspark.sql.types import StructType


class TextCodec:
    """UTF-8 text in one column; bytes that are none are errors."""

    can_fail_to_write = False

    @property
    def columns(self) -> StructType:
        from pyspark.sql.types import StringType, StructField, StructType

        return StructType([StructField("value", StringType())])

    def parse(self, value: Column) -> Column:
        from pyspark.sql import functions as F

        return F.struct(value.cast("string").alias("value"))

    def error(self, parsed: Column) -> Column:
        from pyspark.sql import functions as F

        return F.when(~F.is_valid_utf8(parsed.getField("value")), F.lit("is not UTF-8 text"))

    def fields(self, parsed: Column) -> list[Column]:
        return [parsed.getField("value").alias("value")]

    def encode(self, row: Column, columns: StructType) -> Column:
        from pyspark.sql import functions as F

        only = row.getField(columns.names[0])
        text = F.lit(None).cast("string")
        return F.struct(only.cast("string").cast("binary").alias("value"), text.alias("error"))

    def refuse(self, columns: StructType) -> list[str]:
        if len(columns.fields) == 1:
            return []
        return [f"format='string' writes one column, and the result has {', '.join(columns.names)}"]

    def explain(self, value: bytes) -> str:
        return "is not UTF-8 text"
