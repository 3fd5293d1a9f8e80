"""Pairwise masks: the sum of a group's vectors and nothing else (Bonawitz et al. 2017, CCS).

    parts, binding    what travels, and what everything is bound to
    graph             in large groups: how few members hold a secret's shares, how few pairs have a mask
    secrets, shares   a site's fresh secrets of one attempt, and their shares for the other members
    masks             a vector under a mask for every peer and one of its own
    sharers           the members' signatures on whom they mask with, where the graph is sparse
    survivors         the members' signatures on who is in the sum
    release           one kind of share for each owner: its self-mask's seed, or its mask key if it dropped out
    unmask            the coordinator's half: the sum
    scheme            the payload

In order: every member states fresh public keys (signed, see :class:`parts.MaskKeys`), makes shares, checks and opens
those of its peers, masks, signs the survivors, and having seen enough signatures on the same set releases shares.

What holds, for a group of n with threshold t = ⌊2n/3⌋ + 1. A passive coordinator with fewer than t of the members
learns the sum of the others' vectors, and no more. An active one, which tells members different survivor sets, opens
a vector only together with 2t − n members or more, *provided that each honest member signs and answers for one
survivor set per attempt*. Where the same vectors are masked again in a later attempt, it opens both sums only together
with as many, *provided that each honest member goes along with the later attempt only if t of the earlier one's n
members are in it, and then releases nothing of the earlier one*. Both memories are the session's, these functions have
none. Nothing is promised between members beyond that: t of them open every vector of the group together.

All of this is for masks and shares between all members. In a *sparse* graph (:mod:`crypto.pairwise.graph`) what holds
is statistical, against a number of colluders that is fixed beforehand, and nothing is promised against more. Two
provisos change there: a holder releases a share of a seed only under its owner's signature on whom it masks with, and
an honest member that has *signed* survivors goes along with no later attempt over the same vectors.

n is how many members an attempt lists, which is the coordinator's choice, down to what members insist on. 2t − n is
at least (n + 2)/3: c members that help it are too few for *every* n from 3c − 1 on (3, 5, 8 for c = 1, 2, 3, where 3
rather than 2 leaves the sum of two others).

What does not hold. A group of n loses at most n − t members in an attempt: a group of three has t = 3 and tolerates
no drop-out. A member that shares, masks or releases wrongly spoils the sum: it is detected (mostly, see
:mod:`crypto.fixed_point`), not attributed. Nothing checks that a member's vector is honest. The sum itself says what
it says: two sums over the same vectors that differ by one member give that member's vector, and two over nearly the
same vectors nearly. Whoever decides what vectors are made from can keep them from changing; masks do not help there,
differential privacy would.
"""

from crypto.pairwise.scheme import SCHEME

__all__ = ["SCHEME"]
