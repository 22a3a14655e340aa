"""The configuration of topics, brokers, groups and client metrics.

Declarations only, in the language of `ottla.wire.schema`.
"""

from ottla.wire.schema import Bool, Int8, Int16, Int32, NullableString, String, message, since, struct


@struct
class DescribeConfigsResource:
    """A resource, and the keys wanted; null for all."""

    resource_type: Int8
    resource_name: String
    configuration_keys: list[String] | None


@message(api_key=32, versions="1-4", flexible="4+")
class DescribeConfigsRequest:
    """Asks for the configuration of resources."""

    resources: list[DescribeConfigsResource]
    include_synonyms: Bool = False
    include_documentation: Bool = since(3, default=False)


@struct
class DescribeConfigsSynonym:
    """A place the value could come from, in order of precedence."""

    name: String
    value: NullableString
    source: Int8


@struct
class DescribeConfigsResourceResult:
    """A key, its value, and where that comes from."""

    name: String
    value: NullableString
    read_only: Bool
    config_source: Int8 = -1
    is_sensitive: Bool
    synonyms: list[DescribeConfigsSynonym]
    config_type: Int8 = since(3, default=0, ignorable=True)
    documentation: NullableString = since(3, default="", ignorable=True)


@struct
class DescribeConfigsResult:
    """The configuration of one resource."""

    error_code: Int16 = 0
    error_message: NullableString
    resource_type: Int8
    resource_name: String
    configs: list[DescribeConfigsResourceResult]


@message(api_key=32, versions="1-4", flexible="4+")
class DescribeConfigsResponse:
    """The configuration, resource by resource."""

    throttle_time_ms: Int32 = 0
    results: list[DescribeConfigsResult]


@struct
class AlterableConfig:
    """A key and its new value."""

    name: String
    value: NullableString


@struct
class AlterConfigsResource:
    """A resource and all that it shall have."""

    resource_type: Int8
    resource_name: String
    configs: list[AlterableConfig]


@message(api_key=33, versions="0-2", flexible="2+")
class AlterConfigsRequest:
    """Replaces the whole dynamic configuration of resources."""

    resources: list[AlterConfigsResource]
    validate_only: Bool


@struct
class AlterConfigsResourceResponse:
    """Whether one resource was changed."""

    error_code: Int16 = 0
    error_message: NullableString
    resource_type: Int8
    resource_name: String


@message(api_key=33, versions="0-2", flexible="2+")
class AlterConfigsResponse:
    """Which resources were changed."""

    throttle_time_ms: Int32 = 0
    responses: list[AlterConfigsResourceResponse]


@struct
class IncrementalAlterableConfig:
    """A key, and what to do with its value."""

    name: String
    config_operation: Int8
    value: NullableString


@struct
class IncrementalAlterConfigsResource:
    """A resource and the keys to change."""

    resource_type: Int8
    resource_name: String
    configs: list[IncrementalAlterableConfig]


@message(api_key=44, versions="0-1", flexible="1+")
class IncrementalAlterConfigsRequest:
    """Changes single keys of resources (KIP-339)."""

    resources: list[IncrementalAlterConfigsResource]
    validate_only: Bool


@message(api_key=44, versions="0-1", flexible="1+")
class IncrementalAlterConfigsResponse:
    """Which resources were changed."""

    throttle_time_ms: Int32 = 0
    responses: list[AlterConfigsResourceResponse]


@message(api_key=74, versions="0-1", flexible="0+")
class ListConfigResourcesRequest:
    """Asks which resources have a configuration of their own."""

    resource_types: list[Int8] = since(1, default=[])


@struct
class ConfigResource:
    """A resource in the list."""

    resource_name: String
    resource_type: Int8 = since(1, default=16, ignorable=True)


@message(api_key=74, versions="0-1", flexible="0+")
class ListConfigResourcesResponse:
    """The resources that have one."""

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    config_resources: list[ConfigResource]
