"""`ottla pipeline new`: a starter file that runs as it is, or a copy of one of the pipelines that ship."""

from __future__ import annotations

import re
from pathlib import Path

from ottla.cli.args import CliError, UsageError
from ottla.cli.output import say

_TEMPLATE = '''\
"""{name}: page views counted by minute.

    ottla pipeline run {file}          check it, run it, watch it; Ctrl-C stops it
    ottla pipeline status {name}

Send it something:

    echo '{{"page": "/home", "user": "ada", "at": "2026-01-01T12:00:00Z"}}' | ottla produce -t {name}
    ottla consume -t {name}.per_minute -o beginning
"""

from pyspark.sql.functions import window

from ottla.spark import pipeline, topic

# An input: a topic, and what its values are. JSON by a Spark schema here; format="avro" and format="protobuf" take
# an Avro schema or a Protobuf descriptor. `partitions` creates the topic if it is missing.
views = topic(
    "{name}",
    schema="page string NOT NULL, user string, at timestamp NOT NULL",
    partitions=1,
)


# A stream: its parameters are its inputs, what it returns goes to `out`. Records that do not parse go to
# `dead_letter`, with the reason in their headers, and never stop the stream.
@pipeline.stream(
    out=topic("{name}.per_minute", key="page", partitions=1),
    mode="update",
    dead_letter=topic("{name}.bad", partitions=1),
)
def per_minute(views=views):
    # A DataFrame like any other: this is plain PySpark. The watermark says how late a record may be; what is older
    # is forgotten, so that the state does not grow for ever.
    return views.withWatermark("at", "10 minutes").groupBy(window("at", "1 minute"), "page").count()


# Other outputs, each exactly once:
#   from ottla.spark import delta, iceberg, parquet
#   out=parquet("lake/views")
#   out=delta("lake/views", key="id", order_by="version")      upserts by a key
#   out=iceberg("web.views", warehouse="lake")
'''


def create(name: str, *, template: str | None, force: bool) -> None:
    """Write NAME.py here."""
    stem = name.removesuffix(".py")
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9._-]*", Path(stem).name):
        raise UsageError(f"{name!r}: the name of a pipeline is letters, digits, '.', '_' and '-'")
    path = Path(f"{stem}.py")
    if path.exists() and not force:
        raise CliError(f"{path} is there already; --force overwrites it")
    if not path.parent.is_dir():
        raise CliError(f"{path.parent}: there is no such directory")
    path.write_text(_text(path, template), encoding="utf-8")
    say(f"wrote {path}; run it with `ottla pipeline run {path}`")


def _text(path: Path, template: str | None) -> str:
    from ottla.spark.pipelines import source_of

    if template is None:
        return _TEMPLATE.format(name=path.stem, file=path)
    return source_of(template).replace(f"{template}.py", str(path))
