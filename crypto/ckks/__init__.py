"""``ckks``: the server combines prototypes that it cannot read (Cheon, Kim, Kim, Song 2017; eprint 2016/421).

    parameters, serialization, packing   what both halves share
    evaluation_keys, circuit, drowning, work, server   the coordinator's half: no secret material
    secret, site                         a site's half
    precision                            how far an answer may be from the exact one

The halves meet in bytes alone; the coordinator's modules never import :mod:`crypto.ckks.secret`.
"""
