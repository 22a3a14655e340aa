"""`ottla storage version-mapping` and `feature-dependencies`: what a release brings, and what a level needs.

The lines are those of kafka-storage; `-o json` gives the same as one document.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ottla.cli.args import OUTPUT, CliError, Command, argument
from ottla.cli.output import emit_json
from ottla.cli.storage_format import RELEASE

if TYPE_CHECKING:
    import argparse


def _version_mapping(args: argparse.Namespace) -> None:
    from ottla.metadata import features

    release = args.release_version or features.release_name(features.LATEST_METADATA_VERSION)
    try:
        version = features.metadata_version_from_release(release)
    except ValueError as error:
        raise CliError(str(error)) from None
    levels = features.version_mapping(version)
    if args.output == "json":
        emit_json({features.METADATA_VERSION: version, **levels})
        return
    print(f"{features.METADATA_VERSION}={version} ({release})")
    for name, level in levels.items():
        print(f"{name}={level}")


def _feature_dependencies(args: argparse.Namespace) -> None:
    rows = [_described(pair) for pair in args.feature]
    if args.output == "json":
        emit_json(rows)
        return
    for row in rows:
        for line in _lines(row):
            print(line)


def _described(pair: str) -> dict[str, Any]:
    """One level of one feature and what it needs."""
    from ottla.metadata import features

    name, equals, text = (part.strip() for part in pair.partition("="))
    if not equals:
        raise CliError(f"Invalid feature format: {pair}. Expected NAME=LEVEL, such as group.version=1")
    if not text.isdecimal():
        raise CliError(f"Invalid version format: {text} for feature {name}")
    supported = features.SUPPORTED_FEATURES.get(name)
    if supported is None:
        raise CliError(f"Unknown feature: {name}")
    if int(text) not in supported:
        raise CliError(f"Feature level {text} is not supported for feature {name}")
    need = features.dependency_of(name, int(text))
    return {"feature": name, "level": int(text), "requires": dict([need] if need else [])}


def _lines(row: dict[str, Any]) -> list[str]:
    level = _shown(row["feature"], row["level"])
    if not row["requires"]:
        return [f"{level} has no dependencies."]
    return [f"{level} requires:", *(f"    {_shown(name, need)}" for name, need in row["requires"].items())]


def _shown(name: str, level: int) -> str:
    """A metadata version has a release's name beside its number."""
    from ottla.metadata import features

    release = f" ({features.release_name(level)})" if name == features.METADATA_VERSION else ""
    return f"{name}={level}{release}"


VERSION_MAPPING = Command(
    "version-mapping", "the feature levels that a release brings", RELEASE, OUTPUT, run=_version_mapping
)
FEATURE_DEPENDENCIES = Command(
    "feature-dependencies",
    "what a feature's level needs of other features",
    argument(
        "-f",
        "--feature",
        action="append",
        required=True,
        metavar="NAME=LEVEL",
        help="may be given many times",
    ),
    OUTPUT,
    run=_feature_dependencies,
)
