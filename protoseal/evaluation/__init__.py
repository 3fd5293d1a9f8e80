"""Evaluation of privacy by attacks."""
