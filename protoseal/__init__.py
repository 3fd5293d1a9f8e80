"""Command line, configuration, simulation and reports."""
