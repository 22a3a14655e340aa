"""Side-by-side benchmarks: Apache Kafka 4.3.1 and Ottla, one after the other, the same load, ratios.

    python -m bench                      # all parts, some ten minutes
    python -m bench produce fetch        # only these: produce fetch latency start memory tools partitions stalls

Only ratios of one run mean anything: on a busy machine both sides cost a multiple. The table goes to standard output
and everything measured to bench/out/*.json.
"""
