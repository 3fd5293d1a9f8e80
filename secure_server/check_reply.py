"""Reply to the Check call: the facts that a site compares before it joins.

Neither the run nor its store changes. A site that is not on the coordinator's list learns the run's name and nothing
else.
"""

from __future__ import annotations

from agreement import Agreement
from agreement.schema.differences import fields_of
from protoseal_wire.messages import PROTOCOL_VERSION, CheckReply, Listing, RunStage
from secure_server.rounds.preconditions import may_join
from secure_server.rounds.state import Rules, Stage, State

_OF_STAGE = {
    Stage.JOINING: RunStage.JOINING,
    Stage.FINISHED: RunStage.FINISHED,
    Stage.STOPPED: RunStage.STOPPED,
}


def check_reply(agreement: Agreement, rules: Rules, state: State, site: str) -> CheckReply:
    """Return the reply to ``site``, whose certificate the coordinator has verified."""
    if site not in rules.roster:
        return CheckReply(PROTOCOL_VERSION, agreement.run, None)
    listing = Listing(
        agreement_hash=agreement.hash(),
        fields=fields_of(agreement),
        stage=_OF_STAGE.get(state.stage, RunStage.UNDER_WAY),
        round=state.round,
        may_join=may_join(rules, state, site),
    )
    return CheckReply(PROTOCOL_VERSION, agreement.run, listing)
