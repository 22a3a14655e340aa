"""Where PySpark finds Ottla by itself: it imports every top-level `pyspark_*` module and registers its DefaultSource.

A module that fails to import here would disable every Python data source of the session, not just ours. So a Python
that lacks a package (PyArrow, most of all) gets a source that says so when it is used, and one whose PySpark is too
old for sources in Python gets none.
"""

try:
    from ottla.spark.source.data_source import OttlaDataSource as DefaultSource
except ImportError as error:
    _why = str(error)
    try:
        from pyspark.sql.datasource import DataSource
    except ImportError:
        __all__: list[str] = []
    else:
        import sys

        class DefaultSource(DataSource):  # type: ignore[no-redef]
            """`format("ottla")` where it cannot work."""

            @classmethod
            def name(cls) -> str:
                return "ottla"

            def schema(self) -> str:
                raise ImportError(self.why())

            def writer(self, schema: object, overwrite: bool) -> object:  # type: ignore[override]
                raise ImportError(self.why())

            def streamWriter(self, schema: object, overwrite: bool) -> object:  # type: ignore[override]
                raise ImportError(self.why())

            @staticmethod
            def why() -> str:
                return (
                    f"{_why}: Spark's Python is {sys.executable}; set PYSPARK_PYTHON, before Spark starts, to one that "
                    "has Ottla, PySpark and PyArrow, on every machine of the cluster"
                )

        __all__ = ["DefaultSource"]
else:
    __all__ = ["DefaultSource"]
