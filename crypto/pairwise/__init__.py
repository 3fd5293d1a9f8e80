"""Pairwise masks: the sum of a group's vectors and nothing else (Bonawitz et al. 2017)."""
