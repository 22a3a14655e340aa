"""`--registry` of `ottla consume` and `ottla produce`: values by a registry's schemas, shown and typed as JSON.

Where the registry is comes from the option or, with `-`, from the settings (a profile, --command-config, -X), which
also have the credentials, under the names of Confluent's clients. Owned by the process that runs one command.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.cli.args import CliError, UsageError, argument, pairs
from ottla.cli.client import REGISTRY_KEYS, REGISTRY_URL, command_config
from ottla.cli.profile import profile_file

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Sequence

    from ottla.client.consumer.fetch import ConsumerRecord
    from ottla.client.registry.client import RegistryClient

    Show = Callable[[Sequence[ConsumerRecord]], tuple[list[ConsumerRecord], CliError | None]]

FROM_SETTINGS = "-"
REGISTRY = argument(
    "--registry",
    metavar="URL",
    help="values are by the schemas of this schema registry, and JSON here (-: schema.registry.url of the settings)",
)


def shown(args: argparse.Namespace) -> Show | None:
    """Records with their values as JSON, up to the first that cannot be shown, and what is wrong with that one; None
    without --registry."""
    client = _client(args)
    if client is None:
        return None
    from ottla.client.registry.client import RegistryError
    from ottla.spark.pipeline.declare import DeclarationError
    from ottla.spark.pipeline.values.plain import Shown

    show = Shown(client)

    def with_json(records: Sequence[ConsumerRecord]) -> tuple[list[ConsumerRecord], CliError | None]:
        done: list[ConsumerRecord] = []
        for record in records:
            place = f"{record.topic}-{record.partition} at offset {record.offset}"
            try:
                done.append(record if record.value is None else record._replace(value=show(record.value)))
            except (ValueError, DeclarationError) as error:
                return done, CliError(
                    f"{place}: the value {error}; without --registry it is printed as it is"
                )
            except RegistryError as error:
                return done, CliError(f"{place}: {error}")
        return done, None

    return with_json


def taken(args: argparse.Namespace) -> Callable[[bytes], bytes] | None:
    """JSON text as values; None without --registry. ValueError of what it gives: the text does not fit."""
    client = _client(args)
    if client is None:
        if args.value_schema is not None or args.value_message is not None:
            raise UsageError("--value-schema and --value-message need --registry")
        return None
    from ottla.client.registry.client import RegistryError
    from ottla.spark.pipeline.declare import DeclarationError
    from ottla.spark.pipeline.values.plain import taker

    try:
        return taker(client, f"{args.topic}-value", args.value_schema, args.value_message)
    except DeclarationError as error:
        raise UsageError(str(error)) from None
    except RegistryError as error:
        raise CliError(str(error)) from None


def _client(args: argparse.Namespace) -> RegistryClient | None:
    if args.registry is None:
        return None
    from ottla.client.registry.client import RegistrySettings, RegistrySettingsError, registry_client

    given = _settings(args)
    url = given.pop(REGISTRY_URL, "") if args.registry == FROM_SETTINGS else args.registry
    given.pop(REGISTRY_URL, None)
    if not url:
        raise UsageError(f"--registry {FROM_SETTINGS}: the settings have no {REGISTRY_URL}")
    try:
        return registry_client(RegistrySettings.of(url, given))
    except RegistrySettingsError as error:
        raise UsageError(f"--registry: {error}") from None


def _settings(args: argparse.Namespace) -> dict[str, str]:
    """What the profile, --command-config and -X say of the registry; the later wins."""
    from ottla.client.config import properties_text
    from ottla.client.errors import ConfigError
    from ottla.config.errors import ConfigError as BadSetting
    from ottla.config.properties import parse_properties

    found: dict[str, str] = {}
    for file in (profile_file(args.profile), command_config(args)):
        if file is not None:
            try:
                found |= {name: value for name, value, _ in parse_properties(properties_text(file))}
            except (ConfigError, BadSetting) as error:
                raise UsageError(str(error)) from None
    found |= dict(pairs(args.property, "-X"))
    return {name: value for name, value in found.items() if name in REGISTRY_KEYS}
