"""What a round's steps are between the coordinator and the sites, one file for each way of combining.

Each knows what the steps ask, what a good answer is and what follows from all of them; none knows the run, its
store or its clock. :mod:`secure_server.aggregator` picks one by the agreement.
"""
