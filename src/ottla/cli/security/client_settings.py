"""What a user's client is to be told, in the words of that client: Java's, librdkafka's, kafka-python's, and so on.

Pure functions from one set of facts to lines of text. They have a password in them: they go where whoever asked for
them says, and nowhere else.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from ottla.security.channels import WITH_TLS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_LOGIN_MODULES = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
}
MECHANISMS = tuple(_LOGIN_MODULES)


@dataclass(frozen=True, slots=True)
class UserSettings:
    """Who logs in, where and how."""

    user: str
    password: str = field(repr=False)
    mechanism: str
    bootstrap_servers: str
    security_protocol: str
    # The authorities' certificates, a PEM file; None: those of the system.
    ca_location: str | None = None


def settings_for(kind: str, settings: UserSettings) -> str:
    """The text to put into a file or a program; `kind` is one of KINDS."""
    return _FORMATS[kind](settings)


def _java(settings: UserSettings) -> str:
    return _lines(_java_settings(settings))


def _java_settings(settings: UserSettings) -> dict[str, str]:
    trust = {}
    if settings.ca_location is not None and settings.security_protocol in WITH_TLS:
        trust = {"ssl.truststore.type": "PEM", "ssl.truststore.location": settings.ca_location}
    return {
        "bootstrap.servers": settings.bootstrap_servers,
        "security.protocol": settings.security_protocol,
        **trust,
        "sasl.mechanism": settings.mechanism,
        "sasl.jaas.config": jaas(settings.mechanism, settings.user, settings.password),
    }


def jaas(mechanism: str, user: str, password: str) -> str:
    """The text by which a user logs in, for Java."""
    return f"{_LOGIN_MODULES[mechanism]} required username={_quoted(user)} password={_quoted(password)};"


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _librdkafka(settings: UserSettings) -> str:
    found = {
        "bootstrap.servers": settings.bootstrap_servers,
        "security.protocol": settings.security_protocol,
        **_ca(settings, "ssl.ca.location"),
        "sasl.mechanisms": settings.mechanism,
        "sasl.username": settings.user,
        "sasl.password": settings.password,
    }
    return "\n".join(f"{name}={value}" for name, value in found.items())


def _kafka_python(settings: UserSettings) -> str:
    found = {
        "bootstrap_servers": settings.bootstrap_servers.split(","),
        "security_protocol": settings.security_protocol,
        **_ca(settings, "ssl_cafile"),
        "sasl_mechanism": settings.mechanism,
        "sasl_plain_username": settings.user,
        "sasl_plain_password": settings.password,
    }
    return _python("settings", {name: repr(value) for name, value in found.items()})


def _aiokafka(settings: UserSettings) -> str:
    found = {
        "bootstrap_servers": repr(settings.bootstrap_servers),
        "security_protocol": repr(settings.security_protocol),
        "sasl_mechanism": repr(settings.mechanism),
        "sasl_plain_username": repr(settings.user),
        "sasl_plain_password": repr(settings.password),
    }
    if settings.security_protocol not in WITH_TLS:
        return _python("settings", found)
    cafile = "" if settings.ca_location is None else f"cafile={settings.ca_location!r}"
    found["ssl_context"] = f"create_ssl_context({cafile})"
    return "from aiokafka.helpers import create_ssl_context\n\n" + _python("settings", found)


def _spark(settings: UserSettings) -> str:
    """For `.options(**options)` of spark.readStream.format("ottla") or format("kafka")."""
    found = {f"kafka.{name}": repr(value) for name, value in _java_settings(settings).items()}
    return _python("options", found)


def _ca(settings: UserSettings, name: str) -> dict[str, str]:
    if settings.ca_location is None or settings.security_protocol not in WITH_TLS:
        return {}
    return {name: settings.ca_location}


def properties(settings: Mapping[str, str]) -> bytes:
    """A .properties file, as Java reads it: what is not ASCII is escaped."""
    lines = [f"{_escaped(key)}={_escaped(value, is_value=True)}" for key, value in settings.items()]
    return ("\n".join(lines) + "\n").encode("ascii")


_ESCAPES: Final = {"\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t", "\f": "\\f"}


def _escaped(text: str, *, is_value: bool = False) -> str:
    out = []
    for at, char in enumerate(text):
        if char in _ESCAPES:
            out.append(_ESCAPES[char])
        elif (char in "=:#! " and not is_value) or (char == " " and at == 0):
            out.append("\\" + char)
        elif " " <= char <= "~":
            out.append(char)
        else:
            units = char.encode("utf-16-be", "surrogatepass")
            out += [f"\\u{units[i]:02x}{units[i + 1]:02x}" for i in range(0, len(units), 2)]
    return "".join(out)


def _lines(settings: Mapping[str, str]) -> str:
    return properties(settings).decode().rstrip("\n")


def _python(name: str, values: Mapping[str, str]) -> str:
    lines = "".join(f"    {key!r}: {value},\n" for key, value in values.items())
    return f"{name} = {{\n{lines}}}"


_FORMATS: dict[str, Callable[[UserSettings], str]] = {
    "java": _java,
    "librdkafka": _librdkafka,
    "kafka-python": _kafka_python,
    "aiokafka": _aiokafka,
    "spark": _spark,
}
KINDS = tuple(_FORMATS)
