"""Groups of every kind and their offsets: the machine over __consumer_offsets."""
