"""FedDBP: two branches of features; each site keeps its important channels (docs/explanation/notation.md).

A shared branch gives z^s, whose class means are exchanged; a decision branch gives z^d, which classifies samples.
Each site trains with equation 7,

    L = CE_s + λ1 · CE_d + λ2 · L_s + λ3 · L_d,

and makes its targets from the mean over holders p^c and its own prototypes p_k^c (equations 9 and 10):

    η · p_k^c + (1 − η) · p^c   in the channels T_c with the highest Fisher scores,   p^c in the others.

The server's half is :func:`algorithms.averaging.prototype_means`. The site's half is the scores and the fusion
(:mod:`algorithms.feddbp.fusion`) and the loss (:mod:`algorithms.feddbp.loss`; both torch).
"""
