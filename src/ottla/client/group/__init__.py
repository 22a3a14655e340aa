"""The member of a consumer group: classic protocol and KIP-848, without I/O.

`protocol` has the bytes members exchange, `assignors` who gets what, `classic` and `consumer` the two protocols, and
`events` what a member and its group core say to each other: that is ottla.client.consumer.coordinator, which ties the
member to the consumer's positions and to the application.
"""
