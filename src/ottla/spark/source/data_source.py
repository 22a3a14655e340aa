"""The data source `ottla`: what Spark looks up by name, and where its options are first looked at.

PySpark finds it through the module `pyspark_ottla`; `spark.dataSource.register(OttlaDataSource)` does it by hand.
Spark makes one for every read and write, in processes of its own, and pickles it: it holds options only. From the
process that makes it to the one that plans the read it goes with all of them, passwords too, and does not leave the
driver's machine; the planner's copy goes on to every task, and has none.
"""

import logging
from collections.abc import Callable
from typing import Any

import pyarrow  # noqa: F401  (without it there is nothing to register: pyspark_ottla looks at this import)
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader

from ottla.spark.connection import OptionError
from ottla.spark.delegation import public, without_secrets
from ottla.spark.source.cluster import in_one_line
from ottla.spark.source.options import (
    SourceOptions,
    columns_of,
    for_batch,
    for_stream,
    source_options,
)

log = logging.getLogger(__name__)


class OttlaDataSource(DataSource):
    """`format("ottla")`: topics as tables, with the columns and options of Spark's Kafka connector."""

    @classmethod
    def name(cls) -> str:
        return "ottla"

    @in_one_line()
    def schema(self) -> str:
        """Fixed, but for the headers and what is left out. Options that reading cannot mean are named here, when the
        read is declared."""
        from ottla.spark.source.arrow import ddl

        options = self._source_options()
        if options.no_effect:
            log.warning("options without an effect here: %s", ", ".join(options.no_effect))
        return ddl(options.columns)

    def __getstate__(self) -> dict[str, Any]:
        state = dict(self.__dict__)
        if state.pop("_is_planned", False):
            state["options"] = without_secrets(self.options)
        return state

    @in_one_line()
    def reader(self, schema: Any) -> DataSourceReader:
        from ottla.spark.source.batch import OttlaBatchReader, PushdownBatchReader

        self._is_planned = True
        self._check_schema(schema)
        options = self._source_options(for_batch)
        kind = PushdownBatchReader if options.pushdown else OttlaBatchReader
        return kind(options, public(options.kafka))

    def streamReader(self, schema: Any) -> DataSourceStreamReader:
        from ottla.spark.source.stream import OttlaStreamReader, RefusedStreamReader

        self._is_planned = True
        try:
            self._check_schema(schema)
            options = self._source_options(for_stream)
            return OttlaStreamReader(options, public(options.kafka))
        except OptionError as error:
            # Raised here, it would be lost: PySpark's process goes on to stop the reader that it has not got.
            return RefusedStreamReader(str(error))

    @in_one_line()
    def writer(self, schema: Any, overwrite: bool) -> Any:
        from ottla.spark.sink.writer import batch_writer

        self._is_planned = True
        return batch_writer(self.options, schema, overwrite)

    @in_one_line()
    def streamWriter(self, schema: Any, overwrite: bool) -> Any:
        from ottla.spark.sink.writer import stream_writer

        self._is_planned = True
        return stream_writer(self.options, schema, overwrite)

    def _source_options(self, check: Callable[[SourceOptions], SourceOptions] | None = None) -> SourceOptions:
        options = source_options(self.options)
        return options if check is None else check(options)

    def _check_schema(self, schema: Any) -> None:
        """A schema that the user gives instead of ours cannot be had."""
        names = columns_of(self.options)
        if tuple(schema.fieldNames()) != names:
            raise OptionError(
                f"a topic's columns are fixed ({', '.join(names)}) and cannot be set by a schema; decode the column "
                "value instead, e.g. with from_json, and leave columns out by the option ottla.columns"
            )
