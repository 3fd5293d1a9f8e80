"""FedProto: one prototype per class, averaged over its holders (Tan et al., AAAI 2022; docs/explanation/notation.md).

Each site trains with cross entropy + λ · mean square distance to the averaged prototypes. The server's half is
:func:`algorithms.averaging.prototype_means` (numpy), the site's :mod:`algorithms.fedproto.objective` (torch).
"""
