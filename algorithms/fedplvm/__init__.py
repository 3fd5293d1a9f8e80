"""FedPLVM: dual-level clustering of prototypes (Wang et al., NeurIPS 2024; docs/explanation/notation.md). A baseline.

FINCH over features at the sites and over local prototypes at the server, as FedPLCC, but every cluster has the same
weight (``global_clusters(..., uniform=True)``): :mod:`algorithms.fedplcc.aggregation`. The loss is
:mod:`algorithms.fedplvm.objective` (torch).
"""
