"""A pipeline while it runs: the process, its queries and what becomes of them, what others can see of it."""
