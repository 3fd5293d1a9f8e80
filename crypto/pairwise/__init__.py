"""Pairwise masks: the sum of a group's vectors and nothing else (Bonawitz et al. 2017, CCS).

    parts, binding    what travels, and what everything is bound to
    secrets, shares   a site's fresh secrets of one attempt, and their shares for the other members
    masks             a vector under a mask for every peer and one of its own
    survivors         the members' signatures on who is in the sum
    release           one kind of share for each owner: its self-mask's seed, or its mask key if it dropped out
    unmask            the coordinator's half: the sum
    scheme            the payload

In order: every member states fresh public keys (signed, see :class:`parts.MaskKeys`), makes shares, checks and opens
those of its peers, masks, signs the survivors, and having seen enough signatures on the same set releases shares.

What holds, for a group of n with threshold t = ⌊2n/3⌋ + 1. A passive coordinator with fewer than t of the members
learns the sum of the others' vectors, and no more. An active one, which tells members different survivor sets, opens
a vector only together with more than 2t − n − 1 members, *provided that each honest member signs and answers for one
survivor set per attempt*: that memory is the session's, these functions have none. Nothing is promised between
members beyond that: t of them open every vector of the group together.

What does not hold. A group of n loses at most n − t members in an attempt: a group of three has t = 3 and tolerates
no drop-out. A member that shares, masks or releases wrongly spoils the sum: it is detected (mostly, see
:mod:`crypto.fixed_point`), not attributed. Nothing checks that a member's vector is honest. The sum itself says what
it says: two sums over the same vectors that differ by one member give that member's vector.
"""

from crypto.pairwise.scheme import SCHEME

__all__ = ["SCHEME"]
