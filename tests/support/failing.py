"""A module of an operator that cannot be imported, and whose words are about a secret."""

raise RuntimeError("geheim")
