"""The hand-tuned paths of Produce, Fetch and ShareFetch."""
