"""Section of the agreement on when a site's answers leave."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from agreement.toml_loading import Section

Seconds = Annotated[float, Field(gt=0, le=30 * 86_400)]


class TimingSection(Section):
    """Delays of a site's answers, which hide how long the site took to train, decrypt and encrypt.

    Under every protection except `plain`, an answer that depends on data or on a result leaves at a fixed delay after
    its request. The site measures its first answer in each phase, before it takes any result. From then on it uses
    2 to 2.9 times that, but at most the phase's deadline here. The coordinator's own `[deadlines]` must be longer;
    twice as long leaves a restarted site the time for a second try. Limit: an answer that takes longer than its delay
    shows how long it took. Simulations have no delays.
    """

    answers_show_duration: bool = False
    """Send answers as soon as they are ready, which shows how long training and decryption took."""
    training_deadline: Seconds = 3600.0
    """Longest delay of the answer that follows local training, in seconds; `train` of the coordinator is longer."""
    answer_deadline: Seconds = 300.0
    """Longest delay of the other answers, in seconds; `values` and `result` of the coordinator are longer."""
