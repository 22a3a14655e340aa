"""Schema registries, as Confluent's and Karapace are: asking one, and the frames of values that name its schemas."""
