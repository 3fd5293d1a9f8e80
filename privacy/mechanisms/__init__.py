"""Mechanisms: noisy queries, their sensitivity and their noise."""
