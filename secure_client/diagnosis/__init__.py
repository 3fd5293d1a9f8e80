"""Diagnoses of a run whose settings are wrong, and their remedies."""
