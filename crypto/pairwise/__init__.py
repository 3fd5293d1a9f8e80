"""Pairwise masks: a protocol that reveals the sum of a group's vectors and nothing else (Bonawitz et al. 2017, CCS).

    attempt                   the attempt that every key, mask, share and signature is bound to; a site's secrets
    neighbour_graph           who holds shares of whose secrets, and which pairs have a mask; sparse in large groups
    shares                    shares of a site's secrets for other members, and the release of one kind for each owner
    masks                     a vector under a mask for every peer and a self-mask, and its payload
    member_signatures         the members' signatures on the survivors and, for a sparse graph, on the sharers
    unmask                    the coordinator's half: the sum

Order of steps: every member states fresh public keys (signed, see :class:`crypto.pairwise.attempt.MaskKeys`),
makes shares, checks and opens its peers' shares, masks its vector, signs the survivors, and releases shares once enough
members signed the same set.

Guarantees, for a group of n with threshold t = ⌊2n/3⌋ + 1:

- A passive coordinator that colludes with fewer than t members learns the sum of the others' vectors, and no more.
- An active coordinator, which shows members different survivor sets, opens a vector only with 2t − n or more colluding
  members, *provided that each honest member signs and answers for one survivor set per attempt*.
- If the same vectors are masked again in a later attempt, the coordinator opens both sums only with as many colluders,
  *provided that each honest member joins the later attempt only if t of the earlier attempt's n members are in it, and
  then releases nothing of the earlier attempt*. The session must remember both; these functions keep no state.

In a *sparse* graph (:mod:`crypto.pairwise.neighbour_graph`) the guarantees are statistical, and hold against a number
of colluders that is fixed beforehand. Two provisos change: a holder releases a share of a seed only under the owner's
signature on the set that it masks with, and an honest member that has *signed* survivors joins no later attempt over
the same vectors.

The coordinator chooses an attempt's n, down to the minimum that members require. 2t − n is at least (n + 2)/3: c
colluders are too few for *every* n from 3c − 1 on (3, 5, 8 for c = 1, 2, 3, where 3 rather than 2 leaves the sum of two
others).

Limits:

- t members together open every vector of the group.
- An attempt tolerates at most n − t drop-outs: a group of three has t = 3 and tolerates none.
- A member that shares, masks or releases wrongly spoils the sum. This is mostly detected (see
  :mod:`crypto.fixed_point`), but not attributed. Nothing checks that a member's vector is honest.
- Two sums over the same vectors that differ by one member reveal that member's vector, and two sums over nearly the
  same vectors nearly reveal it. Whoever controls the model that vectors are computed from can keep vectors from
  changing. Masks do not help against that; differential privacy does.
"""

from crypto.pairwise.masks import SCHEME

__all__ = ["SCHEME"]
