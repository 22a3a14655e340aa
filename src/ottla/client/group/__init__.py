"""The member of a consumer group: classic protocol and KIP-848, without I/O.

`protocol` has the bytes members exchange, `assignors` who gets what, `commits` the offsets, `classic` and
`consumer` the two protocols, `core` what ties a member to the consumer's positions and to the application.
"""
