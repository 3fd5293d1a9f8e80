"""Protections and keys. Knows flat arrays and bytes; knows nothing of methods or rounds."""
