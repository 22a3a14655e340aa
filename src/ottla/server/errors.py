"""The answer to a request that failed as a whole, in the shape its response has for that."""

from typing import Any

from ottla.model.errors import ErrorCode, KafkaError
from ottla.wire.registry import response_class


def error_response(request: Any, version: int, code: ErrorCode, message: str | None) -> Any:
    """A response with a top-level error; a request whose response has none closes the connection instead."""
    response = response_class(request.API_KEY)()
    if not hasattr(response, "error_code"):
        raise KafkaError(code, message)
    response.error_code = int(code)
    if hasattr(response, "error_message"):
        response.error_message = message
    return response
