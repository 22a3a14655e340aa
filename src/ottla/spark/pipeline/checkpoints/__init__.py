"""A checkpoint of Spark's: read, compared with a plan, claimed and copied."""
