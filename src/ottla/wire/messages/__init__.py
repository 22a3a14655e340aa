"""The messages of the protocol, one module a family; importing one family imports no other.

At the top what every client sends, and a folder each for administration, groups, security, what nodes say to
one another, and what is stored rather than sent (`ottla.wire.registry` finds a request by its API key).

Names are Kafka's. A struct has Kafka's name too; where two messages of one family give the same name to
different structs, the message's name goes before it (`VoteRequestTopicData`, `VoteResponseTopicData`).
"""
