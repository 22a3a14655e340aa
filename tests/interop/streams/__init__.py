"""Kafka Streams applications, run from Maven's jars."""
