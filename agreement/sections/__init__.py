"""Sections of the agreement file."""
