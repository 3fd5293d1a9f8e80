"""``ckks``: the server combines prototypes that it cannot read (Cheon, Kim, Kim, Song 2017; eprint 2016/421).

    parameters, serialization, packing, bounded_packing              shared by both halves
    evaluation_keys, keys_file, circuit                              the coordinator's keys and arithmetic, all public
    packed_sums, peer_combination, answer_receiver, noise_flooding   PFPL's combinations, at the coordinator
    worker_tasks, server                                             PFPL's combinations as tasks for processes
    group_mixing_server                                              FedPC's mixing, at the coordinator
    secret_key, site                                                 a site's half
    sums, group_mixing                                               both halves of sums and of mixing
    precision                                                        bounds on the error of an answer

The halves exchange bytes only; the coordinator's modules never import :mod:`crypto.ckks.secret_key`.
"""
