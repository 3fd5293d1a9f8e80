"""Baselines that the four methods are compared with; docs/explanation/notation.md has their formulas.

FedProto (Tan et al., AAAI 2022) averages one prototype for each class over its holders. The server's half is
:func:`algorithms.averaging.prototype_means` (numpy).

FPL (Huang et al., CVPR 2023) clusters one prototype for each class and site (``local_clusters(..., single=True)``) by
FINCH at the server, every cluster with the same weight (``global_clusters(..., uniform=True)``).

FedPLVM (Wang et al., NeurIPS 2024) clusters features by FINCH at the sites and local prototypes at the server, as
FedPLCC does, but every cluster has the same weight.

The losses are in a module for each (torch).
"""
