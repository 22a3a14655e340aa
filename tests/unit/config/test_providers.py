"""config.providers: ${provider:path:key} in a value is what a file, a directory or a variable says."""

from pathlib import Path

import pytest

from ottla.config.errors import ConfigError
from ottla.config.settings import Settings

PACKAGE = "org.apache.kafka.common.config.provider."


def _read(tmp_path: Path, lines: dict[str, str], environ: dict[str, str] | None = None) -> Settings:
    file = tmp_path / "server.properties"
    file.write_text("".join(f"{key}={value}\n" for key, value in lines.items()))
    return Settings.read(file=file, environ=environ)


def _provider(name: str, kind: str, **parameters: str) -> dict[str, str]:
    prefix = f"config.providers.{name}"
    given = {f"{prefix}.param.{key.replace('_', '.')}": value for key, value in parameters.items()}
    return {"config.providers": name, f"{prefix}.class": f"{PACKAGE}{kind}ConfigProvider", **given}


@pytest.fixture
def secrets(tmp_path: Path) -> Path:
    folder = tmp_path / "secrets"
    folder.mkdir()
    (folder / "keys.properties").write_text("threads = 5\nname=a:b\nempty=\n")
    (folder / "password").write_text("two\nlines\n")
    return folder


def test_a_file(tmp_path: Path, secrets: Path) -> None:
    file = secrets / "keys.properties"
    settings = _read(
        tmp_path,
        {
            **_provider("file", "File"),
            "background.threads": f"${{file:{file}:threads}}",
            "broker.rack": f"<${{file:{file}:name}}|${{file:{file}:empty}}>",
        },
    )
    assert settings.text("background.threads") == "5"
    assert settings.text("broker.rack") == "<a:b|>"
    assert settings.notes == []


def test_a_directory(tmp_path: Path, secrets: Path) -> None:
    settings = _read(
        tmp_path,
        {
            **_provider("dir", "Directory"),
            "ssl.key.password": f"${{dir:{secrets}:password}}",
            "broker.rack": f"${{dir:{secrets}:../secrets/password}}",
        },
    )
    assert settings.text("ssl.key.password") == "two\nlines\n"
    assert settings.text("broker.rack") == f"${{dir:{secrets}:../secrets/password}}"


def test_variables_that_are_allowed(tmp_path: Path) -> None:
    lines = {
        **_provider("env", "EnvVar", allowlist_pattern="APP_.*"),
        "broker.rack": "${env:APP_RACK}-${env:HOME}",
    }
    settings = _read(tmp_path, lines, {"APP_RACK": "r1", "HOME": "/home/me"})
    assert settings.text("broker.rack") == "r1-${env:HOME}"
    assert len(settings.notes) == 1
    assert "there is no ${env:HOME}" in settings.notes[0]


def test_paths_that_are_not_allowed_are_not_read(tmp_path: Path, secrets: Path) -> None:
    (tmp_path / "other.properties").write_text("a=1\n")
    outside = f"{secrets}/../other.properties"
    lines = {**_provider("file", "File", allowed_paths=str(secrets)), "broker.rack": f"${{file:{outside}:a}}"}
    assert _read(tmp_path, lines).text("broker.rack") == lines["broker.rack"]
    lines["broker.rack"] = f"${{file:{secrets}/../secrets/keys.properties:threads}}"
    assert _read(tmp_path, lines).text("broker.rack") == "5"


def test_without_its_provider_a_variable_stays(tmp_path: Path) -> None:
    assert _read(tmp_path, {"broker.rack": "${file:/x:y}"}).text("broker.rack") == "${file:/x:y}"


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ({**_provider("file", "File"), "broker.rack": "${file:/no/such:key}"}, "Could not read"),
        (
            {**_provider("file", "File", allowed_paths="relative"), "broker.rack": "${file:/x:y}"},
            "not absolute",
        ),
        ({**_provider("file", "File", allowed_paths="/no/such"), "broker.rack": "${file:/x:y}"}, "not exist"),
        ({**_provider("env", "EnvVar"), "broker.rack": "${env:path:KEY}"}, "has no path"),
        (
            {**_provider("env", "EnvVar", allowlist_pattern="("), "broker.rack": "${env:KEY}"},
            "allowlist.pattern",
        ),
        ({**_provider("v", "Vault"), "broker.rack": "${v:a:b}"}, "no such provider"),
        ({"background.threads": "${env:KEY}"}, "bad value '${env:KEY}' for background.threads"),
    ],
)
def test_what_cannot_be_is_one_line(lines: dict[str, str], message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as refused:
        _read(tmp_path, lines)
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_secret_is_not_shown(tmp_path: Path, secrets: Path) -> None:
    variable = f"${{file:{secrets}/keys.properties:name}}"
    with pytest.raises(ConfigError) as refused:
        _read(tmp_path, {**_provider("file", "File"), "background.threads": variable})
    assert "a:b" not in str(refused.value)
    assert variable in str(refused.value)
