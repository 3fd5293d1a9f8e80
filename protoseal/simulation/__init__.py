"""Simulation of whole federations in one process."""
