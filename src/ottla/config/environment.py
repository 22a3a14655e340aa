"""KAFKA_* variables, mapped to keys as the Apache Docker image maps them.

KAFKA_LOG_DIRS is log.dirs; two underscores stand for one, three for a dash. Variables meant for the JVM, for
the image's own scripts or for clients are nobody's keys. Pure: the environment is a parameter.
"""

from __future__ import annotations

import re

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

PREFIX = "KAFKA_"

# The image keeps these from server.properties ...
_JVM = frozenset(
    {
        "KAFKA_GC_LOG_OPTS",
        "KAFKA_HEAP_OPTS",
        "KAFKA_JMX_HOSTNAME",
        "KAFKA_JMX_OPTS",
        "KAFKA_JVM_PERFORMANCE_OPTS",
        "KAFKA_LOG4J_LOGGERS",
        "KAFKA_LOG4J_OPTS",
        "KAFKA_LOG4J_ROOT_LOGLEVEL",
        "KAFKA_OPTS",
        "KAFKA_TOOLS_LOG4J_LOGLEVEL",
        "KAFKA_VERSION",
    }
)
# ... these are used by its scripts and by those in bin/ ...
_SCRIPTS = frozenset(
    {
        "KAFKA_DEBUG",
        "KAFKA_HOME",
        "KAFKA_JMX_PORT",
        "KAFKA_LOG4J_CMD_OPTS",
        "KAFKA_LOG4J2_OPTS",
        "KAFKA_MODE",
        "KAFKA_SSL_KEYSTORE_CREDENTIALS",
        "KAFKA_SSL_KEYSTORE_FILENAME",
        "KAFKA_SSL_KEY_CREDENTIALS",
        "KAFKA_SSL_TRUSTSTORE_CREDENTIALS",
        "KAFKA_SSL_TRUSTSTORE_FILENAME",
    }
)
# ... and these are what applications commonly call their own settings, so they say nothing to a broker.
_CLIENTS = frozenset(
    {
        "KAFKA_BOOTSTRAP",
        "KAFKA_BOOTSTRAP_SERVER",
        "KAFKA_BOOTSTRAP_SERVERS",
        "KAFKA_BROKER",
        "KAFKA_BROKERS",
        "KAFKA_BROKER_LIST",
        "KAFKA_CLIENT_ID",
        "KAFKA_CONSUMER_GROUP",
        "KAFKA_GROUP_ID",
        "KAFKA_HOST",
        "KAFKA_PASSWORD",
        "KAFKA_PORT",
        "KAFKA_TOPIC",
        "KAFKA_TOPICS",
        "KAFKA_URL",
        "KAFKA_USERNAME",
    }
)
IGNORED = _JVM | _SCRIPTS | _CLIENTS


def key_of(variable: str) -> str:
    """The key a KAFKA_* variable stands for."""
    dotted = variable[len(PREFIX) :].lower().replace("_", ".")
    return dotted.replace("...", "-").replace("..", "_")


def settings_of(environ: Mapping[str, str]) -> Iterator[tuple[str, str, str]]:
    """Key, value and variable for every KAFKA_* variable that is a setting."""
    for name in sorted(name for name in environ if name.startswith(PREFIX) and name not in IGNORED):
        yield key_of(name), environ[name], name


def implied_listeners(environ: Mapping[str, str]) -> str | None:
    """The image listens on all interfaces where it is told only what to advertise."""
    advertised = environ.get("KAFKA_ADVERTISED_LISTENERS")
    if not advertised or "KAFKA_LISTENERS" in environ or environ.get("KAFKA_PROCESS_ROLES") == "controller":
        return None
    return re.sub(r"://[^:]*:", "://0.0.0.0:", advertised)
