"""``ckks``: the server combines prototypes that it cannot read (Cheon, Kim, Kim, Song 2017; eprint 2016/421).

    parameters, serialization, packing, bounded        shared by both halves
    evaluation_keys, keys_file, circuit                the coordinator's keys and arithmetic: no secret material
    packed_sums, combining, receivers, drowning        PFPL's combinations, at the coordinator
    work, server                                       PFPL's combinations split into tasks for processes
    mixing_server                                      FedPC's mixing, at the coordinator
    secret, site                                       a site's half
    sums, mixing                                       both halves of sums and of mixing
    precision                                          bounds on the error of an answer

The halves exchange bytes only; the coordinator's modules never import :mod:`crypto.ckks.secret_key`.
"""
