"""How to get what is not installed: the one place that changes when Ottla is on PyPI."""


def install(*extras: str) -> str:
    """The command that brings these extras, and where it is to be typed."""
    return f"pip install '.[{','.join(extras)}]' in Ottla's checkout"
