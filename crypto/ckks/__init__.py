"""``ckks``: the server combines prototypes that it cannot read (Cheon, Kim, Kim, Song 2017; eprint 2016/421).

    parameters, serialization, packing                   shared by both halves
    evaluation_keys, circuit                             the coordinator's keys and arithmetic, all public
    noise_flooding, peer_combination, peer_server        PFPL's combinations, at the coordinator
    secret_key, site                                     a site's half
    sums, group_mixing                                   both halves of sums and of FedPC's mixing

The halves exchange bytes only; a class of the coordinator's never takes a :class:`crypto.ckks.secret_key.CkksSecret`,
and :mod:`crypto.ckks.peer_server` works in a process that has not imported it.
"""
