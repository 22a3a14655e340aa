"""Nexmark: its events, its queries as a pipeline, the same questions in plain SQL, and the part of the bench."""
