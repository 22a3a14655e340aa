"""Side-by-side benchmarks: Apache Kafka 4.3.1 and Ottla on the same machine with the same load, as ratios."""
