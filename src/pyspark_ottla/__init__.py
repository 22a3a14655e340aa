"""Where PySpark finds Ottla by itself: it imports every top-level `pyspark_*` module and registers its DefaultSource.

A module that fails to import here would disable every Python data source of the session, not just ours: without
pyarrow (or with a PySpark too old for Python sources) there is no DefaultSource, and no error.
"""

try:
    from ottla.spark.source import OttlaDataSource as DefaultSource
except ImportError:
    __all__: list[str] = []
else:
    __all__ = ["DefaultSource"]
