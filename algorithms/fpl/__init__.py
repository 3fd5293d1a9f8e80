"""FPL: federated prototypes under domain shift (Huang et al., CVPR 2023; docs/explanation/notation.md). A baseline.

One prototype for each class and site (``local_clusters(..., single=True)``), FINCH over them at the server, every
cluster with the same weight (``global_clusters(..., uniform=True)``): :mod:`algorithms.fedplcc.aggregation`. The loss
is :mod:`algorithms.fpl.objective` (torch).
"""
