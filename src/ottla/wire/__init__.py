"""The wire: Kafka's messages as classes, and their bytes.

`schema` is the language messages are declared in, `messages` the declarations by family, `codec` turns them
to bytes and back with what `compiler` makes, `framing` wraps them, `fast` has the hand-tuned paths.
"""
