"""The coordinator's database."""
