"""FedPLVM: dual-level clustering of prototypes (Wang et al., NeurIPS 2024; docs/explanation/notation.md), a baseline.

Sites cluster features by FINCH and the server clusters local prototypes, as in FedPLCC, but every cluster has the
same weight (``global_clusters(..., uniform=True)`` in :mod:`algorithms.fedplcc.aggregation`). The loss is in
:mod:`algorithms.fedplvm.objective` (torch).
"""
