"""FPL: federated prototypes under domain shift (Huang et al., CVPR 2023; docs/explanation/notation.md), a baseline.

Each site sends one prototype per class (``local_clusters(..., single=True)``). The server clusters the prototypes by
FINCH and gives every cluster the same weight (``global_clusters(..., uniform=True)``), both in
:mod:`algorithms.fedplcc.aggregation`. The loss is in :mod:`algorithms.fpl.objective` (torch).
"""
