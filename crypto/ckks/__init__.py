"""``ckks``: the server combines prototypes that it cannot read (Cheon, Kim, Kim, Song 2017; eprint 2016/421).

    parameters, serialization, packing                   shared by both halves
    group_keys                                           the sites' secret key, and the coordinator's public keys
    circuit                                              the coordinator's arithmetic, with public keys only
    noise_flooding, peer_combination, peer_server        PFPL's combinations, at the coordinator
    site                                                 a site's half
    sums, group_mixing                                   both halves of sums and of FedPC's mixing

The halves exchange bytes only; a class of the coordinator's never takes a :class:`crypto.ckks.group_keys.CkksSecret`.
"""
