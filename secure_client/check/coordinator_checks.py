"""Comparison of a site with its coordinator for ``client check``, by a call that changes nothing there.

Limit: the coordinator's answer is not signed. A false answer misleads the check and affects no run.
"""

from __future__ import annotations

from agreement.differences import differing_fields, in_one_line
from protoseal_wire.messages import CheckReply, Listing, RunStage
from secure_client.app import open_transport
from secure_client.config import SiteConfig
from secure_client.errors import Refused
from secure_client.protocol.setup import Party


def ask(config: SiteConfig, party: Party) -> CheckReply:
    """Return the coordinator's description of its run; raise a :class:`secure_client.errors.SiteError`."""
    with open_transport(config, party) as transport:
        return transport.check()


def check_listed(config: SiteConfig, reply: CheckReply) -> str:
    """Raise :class:`Refused` unless the coordinator's file names the site."""
    _listing(config, reply)
    return f"{config.name} is on the coordinator's list"


def check_agreement(config: SiteConfig, reply: CheckReply) -> str:
    """Raise :class:`Refused`, naming the fields in which the coordinator's agreement differs."""
    listing, agreement = _listing(config, reply), config.agreement
    if listing.agreement_hash == agreement.hash():
        return f"the coordinator has the same agreement, hash {agreement.hash().hex()[:16]}"
    lines = differing_fields(agreement, listing.fields)
    differing = in_one_line(lines) or "no field, so the two installed versions of protoseal differ"
    raise Refused(f"the coordinator's agreement differs in {differing}; use the same agreement file")


def check_open(config: SiteConfig, reply: CheckReply) -> str:
    """Raise :class:`Refused` unless the site can take part in the coordinator's run in its present state."""
    listing, run = _listing(config, reply), config.agreement.run
    if reply.run != run:
        raise Refused(
            f"the coordinator serves run {reply.run!r}, and this site's agreement is for run {run!r}"
        )
    if not listing.may_join:
        raise Refused(f"run {run!r} has started without {config.name}; join the next run")
    match listing.stage:
        case RunStage.JOINING:
            return f"run {run!r} is open for joining"
        case RunStage.UNDER_WAY:
            return (
                f"round {listing.round} of {config.agreement.rounds} of run {run!r}; {config.name} takes part"
            )
        case RunStage.FINISHED:
            return (
                f"run {run!r} is over; start `client run` to fetch the results that {config.name} has missed"
            )
        case RunStage.STOPPED:
            raise Refused(
                f"run {run!r} has stopped; ask the coordinator's operator to restart the run or to begin a new "
                "one"
            )


def _listing(config: SiteConfig, reply: CheckReply) -> Listing:
    if reply.listing is None:
        raise Refused(
            f"{config.name} is not on the list of the coordinator, which serves run {reply.run!r}: have its operator"
            f" add {config.name} to sites in coordinator.toml before the run"
        )
    return reply.listing
