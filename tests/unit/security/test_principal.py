"""principal.builder.class: who somebody is, by a class of the operator's own."""

import pytest

from ottla.config.errors import ConfigError
from ottla.model.errors import ErrorCode, KafkaError
from ottla.security.principal import (
    ANONYMOUS,
    DEFAULT_BUILDER,
    AuthenticationContext,
    KafkaPrincipal,
    build_principal,
    load_principal_builder,
)

CONTEXT = AuthenticationContext("CLIENTS", "SASL_SSL", "10.0.0.1", ANONYMOUS, sasl_mechanism="PLAIN")


class ByAddress:
    """Everybody is where they come from."""

    prefix = ""

    def configure(self, configs: dict[str, str]) -> None:
        self.prefix = configs.get("by.address.prefix", "")

    def build(self, context: AuthenticationContext) -> KafkaPrincipal:
        return KafkaPrincipal("Host", self.prefix + context.client_address)


class Nobody:
    def build(self, context: AuthenticationContext) -> object:
        return "User:alice"


class Lost:
    def build(self, context: AuthenticationContext) -> KafkaPrincipal:
        raise LookupError("no such person")


def test_kafkas_own_is_none_of_ours() -> None:
    assert load_principal_builder(DEFAULT_BUILDER, {}) is None


def test_a_class_by_its_import_path() -> None:
    builder = load_principal_builder(f"{__name__}.ByAddress", {"by.address.prefix": "at-"})
    assert builder is not None
    assert build_principal(builder, CONTEXT) == KafkaPrincipal("Host", "at-10.0.0.1")


@pytest.mark.parametrize("name", ["Nobody", "Lost"])
def test_who_is_nobody_is_not_let_in(name: str, caplog: pytest.LogCaptureFixture) -> None:
    builder = load_principal_builder(f"{__name__}:{name}", {})
    assert builder is not None
    with pytest.raises(KafkaError) as refused:
        build_principal(builder, CONTEXT)
    assert refused.value.code is ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    assert ("no such person" in caplog.text) == (name == "Lost")


@pytest.mark.parametrize("path", ["com.example.Builder", "Builder", f"{__name__}.Missing", "builtins.object"])
def test_what_is_no_builder_keeps_the_node_from_starting(path: str) -> None:
    with pytest.raises(ConfigError) as refused:
        load_principal_builder(path, {})
    assert f"principal.builder.class={path}" in str(refused.value)
    assert "\n" not in str(refused.value)
