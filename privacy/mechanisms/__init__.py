"""Noisy queries, their sensitivity and their noise."""
