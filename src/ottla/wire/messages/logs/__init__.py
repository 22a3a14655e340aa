"""What is stored rather than sent: the keys and values of the internal topics, and control records."""
