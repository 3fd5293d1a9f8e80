"""Means and encrypted sums that the coordinator and the sites compute alike."""
