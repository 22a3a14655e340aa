"""Request scripts: the same frames to Apache Kafka and to Ottla, the answers compared field by field.

`entities` builds and reads messages through kio, an independent codec; `batches` builds record batches,
good and bad ones; `script` sends cases and records the outcomes; `masks` removes what may differ (ids,
clocks, addresses); `differences` holds the few known ones with their reasons; the other modules are the
scripts, one an API family.
"""
