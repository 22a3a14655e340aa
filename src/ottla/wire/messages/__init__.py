"""The messages of the protocol, one module a family; importing one family imports no other.

Names are Kafka's. A struct has Kafka's name too; where two messages of one family give the same name to
different structs, the message's name goes before it (`VoteRequestTopicData`, `VoteResponseTopicData`).
"""

from ottla.wire.registry import REQUESTS, RESPONSES, message_class, request_class, response_class

__all__ = ["REQUESTS", "RESPONSES", "message_class", "request_class", "response_class"]
