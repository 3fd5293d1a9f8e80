"""Exchanges: the steps of a round between the coordinator and the sites, one file for each way of combining.

An exchange knows what its steps ask, which answers are valid and what follows from all of them; no exchange knows the
run, its store or its clock. :mod:`secure_server.aggregator` picks one by the agreement.
"""
