"""The metadata quorum: a pure core, and the driver that runs it for one voter."""
