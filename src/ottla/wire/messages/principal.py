"""Who sent a forwarded request.

Declarations only, in the language of `ottla.wire.schema`.
"""

from ottla.wire.schema import Bool, String, data


@data(versions="0", flexible="0+")
class DefaultPrincipalData:
    """Who sent a forwarded request."""

    type: String
    name: String
    token_authenticated: Bool
