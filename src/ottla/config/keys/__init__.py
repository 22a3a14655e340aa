"""The tables of keys, a file for each family. Facts about 4.3.1; nothing here does anything."""
