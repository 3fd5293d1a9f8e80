"""``ckks``: the server combines prototypes that it cannot read (Cheon, Kim, Kim, Song 2017; eprint 2016/421).

    parameters, serialization, packing, bounded        what both halves share
    evaluation_keys, keys_file, circuit                the coordinator's half: no secret material
    packed_sums, combining, receivers, drowning        PFPL's combinations, at the coordinator
    work, server                                       the same in pieces, for processes
    mixing_server                                      FedPC's mixing, at the coordinator
    secret, site                                       a site's half
    sums, mixing                                       both halves, of sums and of mixing
    precision                                          how far an answer may be from the exact one

The halves meet in bytes alone; the coordinator's modules never import :mod:`crypto.ckks.secret_key`.
"""
