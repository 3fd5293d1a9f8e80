"""Measurements that a user can repeat: each compares two ways of doing the same in one run, as a ratio."""
