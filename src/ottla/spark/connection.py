"""Clients for Spark's processes: one a process for each set of settings, kept between tasks; and the options `kafka.*`.

Spark reuses its Python workers and forks them: a client is found again by its settings and belongs to the process
that made it. A client left by the parent of a fork is forgotten without touching its connections.

Spark's connector hands all `kafka.*` options to the Java client, which ignores what it does not know. Here a name that
no client of Kafka knows is an error with the nearest one that is known; what the Java client knows and Ottla's has no
use for (metrics reporters, buffers, assignors) is ignored and named in the log; what would silently weaken a connection
(a key of `ssl.` or `sasl.` that there is not) is refused. The names of all other options are here, too, for jobs hand
the same ones to their reads and to their writes: each ignores, whatever its value, what only the other one has.

Settings of the client may also stand in a properties file, named by the option `ottla.config`: then only its path is in
Spark's plan, and each process reads it that connects with it. What is a secret never goes to Spark's workers by an
option: ottla.spark.delegation says what they log in with.
"""

import atexit
import difflib
import gc
import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from ottla.client.config import ClientConfig, settings_file
from ottla.client.errors import ConfigError
from ottla.client.inline import InlineClient

PREFIX = "kafka."
BOOTSTRAP = "bootstrap.servers"
CONFIG_FILE = "ottla.config"
COLUMNS_OPTION = "ottla.columns"
STRATEGIES = ("subscribe", "subscribePattern", "assign")
SOURCE_NAMES = (
    *STRATEGIES,
    "startingOffsets",
    "startingTimestamp",
    "startingOffsetsByTimestamp",
    "startingOffsetsByTimestampStrategy",
    "endingOffsets",
    "endingTimestamp",
    "endingOffsetsByTimestamp",
    "maxOffsetsPerTrigger",
    "minOffsetsPerTrigger",
    "maxTriggerDelay",
    "minPartitions",
    "maxRecordsPerPartition",
    "failOnDataLoss",
    "includeHeaders",
    "groupIdPrefix",
    "ottla.group",
    "ottla.pushdown",
    COLUMNS_OPTION,
    CONFIG_FILE,
)
# Options of Spark's connector for its own consumers and retries: taken, and of no effect.
SOURCE_NO_MEANING = (
    "kafkaConsumer.pollTimeoutMs",
    "fetchOffset.numRetries",
    "fetchOffset.retryIntervalMs",
    "partition.metadata.cache.ttl.ms",
)
SINK_NAMES = (
    "topic",
    "ottla.delivery",
    "ottla.write.id",
    "ottla.write.version",
    "failOnDataLoss",
    CONFIG_FILE,
)
# For Spark itself.
SPARK_NAMES = ("checkpointLocation", "path", "queryName")
_SPELLING = {name.lower(): name for name in (*SOURCE_NAMES, *SOURCE_NO_MEANING, *SINK_NAMES, *SPARK_NAMES)}
# What ClientConfig has, by Kafka's names.
CLIENT_KEYS = frozenset(field.name.replace("_", ".") for field in fields(ClientConfig))
# Settings of consumers and producers that mean nothing to a client that reads ranges and writes batches, or only to one
# of them.
_JAVA_ONLY = """
    acks auto.commit.interval.ms auto.include.jmx.reporter auto.offset.reset batch.size buffer.memory check.crcs
    client.dns.lookup client.rack compression.gzip.level compression.lz4.level compression.type
    compression.zstd.level delivery.timeout.ms enable.auto.commit enable.idempotence enable.metrics.push
    exclude.internal.topics fetch.max.bytes fetch.max.wait.ms fetch.min.bytes group.id group.instance.id
    group.protocol group.remote.assignor heartbeat.interval.ms isolation.level key.deserializer key.serializer
    linger.ms max.block.ms max.in.flight.requests.per.connection max.partition.fetch.bytes max.poll.interval.ms
    max.poll.records max.request.size metadata.recovery.rebootstrap.trigger.ms metadata.recovery.strategy
    metric.reporters metrics.num.samples metrics.recording.level metrics.sample.window.ms
    partition.assignment.strategy partitioner.adaptive.partitioning.enable partitioner.availability.timeout.ms
    partitioner.class partitioner.ignore.keys receive.buffer.bytes retries security.providers send.buffer.bytes
    session.timeout.ms socket.connection.setup.timeout.max.ms transaction.timeout.ms transactional.id
    transaction.two.phase.commit.enable value.deserializer value.serializer
    encryption.allow.plaintext encryption.key
"""
_NO_MEANING = frozenset(_JAVA_ONLY.split())
# What Spark takes for no secret, and so shows in its plans: it hides what is called a password, a secret or a token.
_SHOWN = {
    "ssl.keystore.key": "it would stand in Spark's plans for all to see; name a file by kafka.ssl.keystore.location",
    "sasl.oauthbearer.assertion.private.key.passphrase": (
        "it would stand in Spark's plans for all to see; put it into the file of the option ottla.config"
    ),
}
CLIENT_ID = "ottla-spark"
MAX_CLIENTS = 8


class OptionError(ValueError):
    """An option that cannot be meant, named as the user writes it."""


@dataclass(frozen=True, slots=True)
class KafkaOptions:
    """`kafka.*`, sorted out."""

    # For ClientConfig, sorted: usable as a key. Passwords may be among them.
    client: tuple[tuple[str, str], ...] = field(repr=False)
    used: Mapping[str, str]  # further keys that the caller uses
    ignored: tuple[str, ...]
    file: str | None = None  # ottla.config: more of the client's settings, for whatever process connects


def settings_of(kafka: KafkaOptions) -> dict[str, str]:
    """All settings of the client: those of the file, read now, and before them those of the options; OptionError."""
    given = dict(kafka.client)
    if kafka.file is None:
        return given
    try:
        found = settings_file(kafka.file).taken
    except ConfigError as error:
        raise OptionError(f"the option {CONFIG_FILE}: {error}") from None
    except OSError as error:
        raise OptionError(f"the option {CONFIG_FILE}: {kafka.file}: {error.strerror or error}") from None
    for store in _STORES:
        if any(key.startswith(store) for key in given):  # a store is another one as a whole
            found = {key: value for key, value in found.items() if not key.startswith(store)}
    return {**found, **given}


_STORES = (("ssl.truststore.", "ssl.ca."), ("ssl.keystore.", "ssl.key.", "ssl.certificate."))


def kafka_options(
    options: Mapping[str, str], *, used: Collection[str] = (), refused: Mapping[str, str] | None = None
) -> KafkaOptions:
    """Sorts out `kafka.*` of all options. `used`: keys the caller has a use for; `refused`: key -> why."""
    given = {name[len(PREFIX) :]: value for name, value in options.items() if name.startswith(PREFIX)}
    file = options.get(CONFIG_FILE, "").strip() or None
    if file is None and not given.get(BOOTSTRAP, "").strip():
        raise OptionError(f"the option {PREFIX}{BOOTSTRAP} is missing: host:port of a broker, or several")
    for name in sorted(given):
        _check_name(name, set(used), refused or {})
    client = {name: given[name] for name in given if name in CLIENT_KEYS}
    made = KafkaOptions(
        client=tuple(sorted(client.items())),
        used={name: given[name] for name in given if name in used},
        ignored=tuple(
            sorted(PREFIX + name for name in given if name in _NO_MEANING and name not in {*used, *client})
        ),
        file=file if file is None or file.startswith("~") else os.path.abspath(file),
    )
    settings = settings_of(made)
    if not settings.get(BOOTSTRAP, "").strip():
        raise OptionError(
            f"the option {PREFIX}{BOOTSTRAP} is missing, and {file} does not have it: host:port of a broker, or several"
        )
    _check_client(settings)
    return made


def check_names(given: Mapping[str, str]) -> None:
    """Every name (in lower case) is one that reading or writing has, Spark's, or the client's; OptionError."""
    for name in sorted(given):
        if name not in _SPELLING and not name.startswith(PREFIX):
            near = difflib.get_close_matches(name, list(_SPELLING), n=1)
            hint = f"; the nearest one is {_SPELLING[near[0]]}" if near else ""
            raise OptionError(f"unknown option {name!r}{hint}")


def boolean(given: Mapping[str, str], name: str, default: bool) -> bool:
    """An option that is true or false."""
    value = given.get(name.lower(), str(default)).strip().lower()
    if value not in ("true", "false"):
        raise OptionError(f"the option {name} must be true or false, not {value!r}")
    return value == "true"


def _check_name(name: str, used: set[str], refused: Mapping[str, str]) -> None:
    why = refused.get(name) or _SHOWN.get(name)
    if why is not None:
        raise OptionError(f"the option {PREFIX}{name} is not supported: {why}")
    known = {*CLIENT_KEYS, *_NO_MEANING, *used}
    if name in known:
        return
    near = difflib.get_close_matches(name, sorted(known | refused.keys()), n=1)
    hint = f"; the nearest one is {PREFIX}{near[0]}" if near else ""
    raise OptionError(f"unknown option {PREFIX}{name}{hint}")


def _check_client(client: Mapping[str, str]) -> None:
    try:
        ClientConfig.of(client)
    except ConfigError as error:
        words = str(error)
        # The client names its settings with underscores; the user wrote dots.
        for key in sorted(CLIENT_KEYS, key=len, reverse=True):
            words = words.replace(key.replace(".", "_"), key)
        raise OptionError(f"kafka.*: {words}") from None


_Key = tuple[int, tuple[tuple[str, str], ...], str | None]
_clients: dict[_Key, InlineClient] = {}


def connect(kafka: KafkaOptions, **more: Any) -> InlineClient:
    """A client of the caller's own, started; the caller closes it."""
    settings: dict[str, Any] = {"client.id": CLIENT_ID, **settings_of(kafka), **more}
    return InlineClient(settings).start()


def shared_client(kafka: KafkaOptions) -> InlineClient:
    """The client that this process keeps for these settings; started, never closed by the caller."""
    key: _Key = (os.getpid(), kafka.client, kafka.file)
    client = _clients.get(key)
    if client is None:
        _make_room()
        client = _clients[key] = connect(kafka, **patient(kafka))
        # Spark collects garbage after every task: 25 ms to walk all that is imported, which stays anyway.
        gc.freeze()
    return client


def forget(client: InlineClient) -> None:
    """Close a shared client on whose connections something is still under way; the next one starts anew."""
    for key in [key for key, held in _clients.items() if held is client]:
        del _clients[key]
    client.close()


def patient(kafka: KafkaOptions) -> dict[str, Any]:
    """Who starts while a broker restarts waits for it as long as who is connected already does."""
    given = settings_of(kafka)
    if "bootstrap.timeout.ms" in given:
        return {}
    return {"bootstrap.timeout.ms": ClientConfig.of(given).default_api_timeout_ms}


def _make_room() -> None:
    """Close what a parent left here, and the oldest if there are too many."""
    pid = os.getpid()
    stale = [key for key in _clients if key[0] != pid]
    own = [key for key in _clients if key[0] == pid]
    for key in [*stale, *own[: max(0, len(own) - MAX_CLIENTS + 1)]]:
        _clients.pop(key).close()


def _close_all() -> None:
    for client in _clients.values():
        client.close()
    _clients.clear()


atexit.register(_close_all)
