"""Access rules.

Declarations only, in the language of `ottla.wire.schema`.
"""

from ottla.wire.schema import Int8, Int16, Int32, NullableString, String, message, struct


@message(api_key=29, versions="1-3", flexible="2+")
class DescribeAclsRequest:
    """Asks for the access rules that match a filter."""

    resource_type_filter: Int8
    resource_name_filter: NullableString
    pattern_type_filter: Int8 = 3
    principal_filter: NullableString
    host_filter: NullableString
    operation: Int8
    permission_type: Int8


@struct
class AclDescription:
    """Who may, or may not, do what from where."""

    principal: String
    host: String
    operation: Int8
    permission_type: Int8


@struct
class DescribeAclsResource:
    """A resource pattern and its rules."""

    resource_type: Int8
    resource_name: String
    pattern_type: Int8 = 3
    acls: list[AclDescription]


@message(api_key=29, versions="1-3", flexible="2+")
class DescribeAclsResponse:
    """The rules that match."""

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: NullableString
    resources: list[DescribeAclsResource]


@struct
class AclCreation:
    """A rule to add."""

    resource_type: Int8
    resource_name: String
    resource_pattern_type: Int8 = 3
    principal: String
    host: String
    operation: Int8
    permission_type: Int8


@message(api_key=30, versions="1-3", flexible="2+")
class CreateAclsRequest:
    """Adds access rules."""

    creations: list[AclCreation]


@struct
class AclCreationResult:
    """Whether one rule was added."""

    error_code: Int16 = 0
    error_message: NullableString


@message(api_key=30, versions="1-3", flexible="2+")
class CreateAclsResponse:
    """Which rules were added, in the order of the request."""

    throttle_time_ms: Int32 = 0
    results: list[AclCreationResult]


@struct
class DeleteAclsFilter:
    """A filter; what matches it goes."""

    resource_type_filter: Int8
    resource_name_filter: NullableString
    pattern_type_filter: Int8 = 3
    principal_filter: NullableString
    host_filter: NullableString
    operation: Int8
    permission_type: Int8


@message(api_key=31, versions="1-3", flexible="2+")
class DeleteAclsRequest:
    """Removes the access rules that match filters."""

    filters: list[DeleteAclsFilter]


@struct
class DeleteAclsMatchingAcl:
    """A rule that matched."""

    error_code: Int16 = 0
    error_message: NullableString
    resource_type: Int8
    resource_name: String
    pattern_type: Int8 = 3
    principal: String
    host: String
    operation: Int8
    permission_type: Int8


@struct
class DeleteAclsFilterResult:
    """The rules that matched one filter."""

    error_code: Int16 = 0
    error_message: NullableString
    matching_acls: list[DeleteAclsMatchingAcl]


@message(api_key=31, versions="1-3", flexible="2+")
class DeleteAclsResponse:
    """What was removed, filter by filter."""

    throttle_time_ms: Int32 = 0
    filter_results: list[DeleteAclsFilterResult]
