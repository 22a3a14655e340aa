"""The topics of a pipeline: asked from the brokers before Spark starts, created when Spark has found nothing wrong.

What is missing and may not be created is reported at once. What may be is created only when every plan has been
checked: a misspelt column leaves no topics behind.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from ottla.spark.pipeline.declare import PipelineError, Problem, Topic, did_you_mean
from ottla.spark.pipeline.load import Pipeline

if TYPE_CHECKING:
    from ottla.client.blocking import Admin
    from ottla.model.errors import KafkaError

CLIENT_ID = "ottla-pipeline"


def check_topics(
    pipeline: Pipeline, bootstrap: str, options: Mapping[str, str] | None = None, *, create_all: bool = False
) -> None:
    """PipelineError names the topics that are missing and may not be created; nothing is created here."""
    with admin(bootstrap, options or {}) as client:
        _wanted(client, pipeline, bootstrap, create_all)


def create_topics(
    pipeline: Pipeline, bootstrap: str, options: Mapping[str, str] | None = None, *, create_all: bool = False
) -> list[str]:
    """The topics that had to be created; PipelineError names those that are missing and may not be."""
    with admin(bootstrap, options or {}) as client:
        return _create(client, pipeline, _wanted(client, pipeline, bootstrap, create_all), bootstrap)


def _wanted(admin: Admin, pipeline: Pipeline, bootstrap: str, create_all: bool) -> dict[str, Topic | None]:
    """What is to be created, with its declaration if it has one."""
    missing = _missing(admin, pipeline)
    wanted = {name: _declaration(pipeline, name) for name in missing}
    refused = [name for name, topic in wanted.items() if topic is None and not create_all]
    if refused:
        known = [listing.name for listing in admin.list_topics()]
        raise PipelineError(_problem(pipeline, name, missing[name], bootstrap, known) for name in refused)
    return wanted


def admin(bootstrap: str, options: Mapping[str, str]) -> Admin:
    """Who asks brokers about topics; whoever calls closes it."""
    from ottla.client.blocking import Admin
    from ottla.spark.connection import kafka_options, settings_of

    kafka = kafka_options({"kafka.bootstrap.servers": bootstrap, **options})
    settings: dict[str, Any] = {
        "bootstrap_timeout_ms": 0,
        **{key.replace(".", "_"): value for key, value in settings_of(kafka).items()},
        "client_id": CLIENT_ID,
    }
    return Admin(settings)


def _missing(admin: Admin, pipeline: Pipeline) -> dict[str, KafkaError]:
    """What the brokers say of the topics that they do not give."""
    from ottla.model.errors import KafkaError

    described = admin.describe_topics(sorted(pipeline.topics()))
    return {name: found for name, found in described.items() if isinstance(found, KafkaError)}


def _declaration(pipeline: Pipeline, name: str) -> Topic | None:
    """Where a topic is declared with its number of partitions: then it may be created."""
    uses = pipeline.topics()[name]
    return next((topic for _, _, topic in uses if topic.partitions is not None), None)


def _problem(
    pipeline: Pipeline, name: str, error: KafkaError, bootstrap: str, known: Iterable[str]
) -> Problem:
    stream, parameter, _ = pipeline.topics()[name][0]
    said = f": {error.message}" if error.message and error.code.name not in error.message else ""
    hint = did_you_mean(name, list(known)) or (
        f"; create it (ottla topic create {name}), declare partitions=, or run with --create-topics"
    )
    what = f"the brokers at {bootstrap} have no topic {name!r} ({error.code.name}{said}){hint}"
    return pipeline.problem(stream, parameter, what)


def _create(
    admin: Admin, pipeline: Pipeline, wanted: Mapping[str, Topic | None], bootstrap: str
) -> list[str]:
    from ottla.client.admin.types import NewTopic
    from ottla.model.errors import ErrorCode, KafkaError

    if not wanted:
        return []
    made = admin.create_topics(
        [
            NewTopic(
                name,
                -1 if topic is None else topic.partitions or -1,
                configs=dict(topic.config if topic else {}),
            )
            for name, topic in wanted.items()
        ]
    )
    failed = {
        name: found
        for name, found in made.items()
        if isinstance(found, KafkaError) and found.code is not ErrorCode.TOPIC_ALREADY_EXISTS
    }
    if failed:
        raise PipelineError(
            Problem(
                pipeline.path.name,
                f"topic {name!r} cannot be created at {bootstrap}: {error.message or error.code.name}",
            )
            for name, error in failed.items()
        )
    return sorted(made)
