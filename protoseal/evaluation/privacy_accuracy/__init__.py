"""Accuracy that a configuration reaches at each ε."""
