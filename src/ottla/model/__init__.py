"""Ids, error codes, enums and the Clock: what every layer speaks of. Imports nothing of Ottla's."""
