"""The wire: Kafka's messages as classes, and their bytes.

`schema` is the language messages are declared in, `messages` the declarations by family, `codec` turns them
to bytes and back, `header` and `framing` wrap them, `fast_produce` and `fast_fetch` are the hand-tuned paths.
"""
