"""Cryptographic protections, keys and identities, on flat arrays and bytes, without methods and rounds."""
