"""Audits that attack a mechanism and compare the outcome with its claim."""
