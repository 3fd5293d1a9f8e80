"""Fixed delays between requests and answers, so that the time of an answer shows nothing of what the site computed.

How long training, decryption and encryption take can depend on records and on decrypted values. An answer that follows
such work is therefore computed, stored, and held until a fixed time after its request has arrived. The delay of a phase
is set with the site's first answer, when no result has been received: the measured time, times a public factor, rounded
up on a public grid. The journal keeps it, so that a restart changes nothing. Where the first answer itself depends on a
decryption, the delay follows from the time of the first VALUES, and from a test of the model as it was before:

- MEANS decrypts and encrypts again what VALUES encrypted;
- the acknowledgement of RESULT decrypts as much as VALUES encrypted, and tests the model, some methods twice.

The set-up precedes all data. SHARES, SURVIVORS and UNMASK need no delay: they are computed from lists, keys and shares,
whose number and size are public.

Limits. An answer that takes longer than its delay leaves at once and shows how long it took; the journal counts these
overruns and the log names them. A delay shows the time of the first answer, to half an octave. A phase that the
coordinator asks for only after a result sets its delay then: training from a result to catch up with, or VALUES at a
site that was left out of the first round's sum.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

from agreement import Agreement
from protoseal_wire.messages import Phase, PhaseKey
from secure_client.protocol.journal import Journal

_log = logging.getLogger("protoseal.site")
SHORTEST_DELAY = 0.25
"""Seconds; far above the jitter of a process that wakes up and of a network."""
_MARGIN = 2.0
"""Public factor: later rounds were seen to take up to 1.5 times the first, which has no targets to align with."""
_MEANS_OF_VALUES = 3.0
"""Public factor: MEANS was seen to take 1.5 to 2.7 times as long as VALUES."""
_RESULT_OF_VALUES = 2.0
"""Public factor, beside the margin: RESULT without tests was seen to take up to 2.5 times as long as VALUES."""
_TESTS = 2
"""Most tests of the model after a result: of the trained model, and of the aggregated one."""
_DELAYED = (Phase.PRESENCE, Phase.DIRECTIONS, Phase.VALUES, Phase.MEANS, Phase.RESULT)
_OVERRUNS = "overruns"


class AnswerDelays:
    """Delays of one site's answers in one run; none where the agreement has none (:attr:`Agreement.delays_answers`)."""

    def __init__(
        self,
        journal: Journal,
        agreement: Agreement,
        test_model: Callable[[], object],
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """Take ``test_model``, which tests the site's present model and is timed before the first result is read."""
        self._journal = journal
        self._timing = agreement.timing
        self._test_model = test_model
        self._phases = _DELAYED if agreement.delays_answers else ()
        self._clock = clock
        self._sleep = sleep
        self._arrived = 0.0

    @contextmanager
    def hold_answer(self, key: PhaseKey) -> Iterator[None]:
        """Enter the ``with`` block when the request has arrived; its end waits until the answer may leave.

        An error is held as well, since the site then leaves the run. So is the refusal of a request, because a site may
        have computed on records before it finds that the protocol does not allow the request.
        """
        if key.phase not in self._phases:
            yield
            return
        self._arrived = self._clock()
        if key.phase in (Phase.MEANS, Phase.RESULT) and self._delay(key) is None:
            self._derive(key)
        try:
            yield
        except Exception as error:
            _log.error(
                "%s of round %d failed, and the site leaves when its answer would have left: %s",
                key.phase.name,
                key.round,
                error,
            )
            self._hold(key)
            raise
        self._hold(key)

    def keep(self, key: PhaseKey) -> None:
        """Set the phase's delay with its first answer; call this in the transaction that stores the answer."""
        if key.phase in self._phases and self._delay(key) is None:
            self._set(key, _MARGIN * (self._clock() - self._arrived))

    def _derive(self, key: PhaseKey) -> None:
        """Set a delay before the first request of its phase is read."""
        # A site that dropped out before VALUES gets the result of a masked sum all the same.
        stored = self._load(replace(key, phase=Phase.VALUES)) or self._load(
            replace(key, phase=Phase.PRESENCE)
        )
        values = SHORTEST_DELAY if stored is None else stored[0]
        if key.phase is Phase.MEANS:
            self._set(key, _MEANS_OF_VALUES * values)
            return
        began = self._clock()
        self._test_model()
        self._set(key, _RESULT_OF_VALUES * values + _MARGIN * _TESTS * (self._clock() - began))

    def _set(self, key: PhaseKey, seconds: float) -> None:
        deadline = (
            self._timing.training_deadline if key.phase is Phase.PRESENCE else self._timing.answer_deadline
        )
        delay = _rounded_up(seconds)
        if delay > deadline:
            _log.warning(
                "answers to %s would leave %.0f s after their requests, but the agreed deadline is %.0f s, so some may "
                "show how long they took: agree on a longer deadline in [timing] for the next run",
                key.phase.name,
                delay,
                deadline,
            )
        # At the deadline the coordinator goes on without this site, so a later answer would help nobody.
        delay = min(delay, deadline)
        self._journal.put(_name(key), key.round, f"{seconds!r} {delay!r}".encode())
        _log.info("answers to %s leave %.2f s after their requests", key.phase.name, delay)

    def _delay(self, key: PhaseKey) -> float | None:
        stored = self._load(key)
        return None if stored is None else stored[1]

    def _load(self, key: PhaseKey) -> tuple[float, float] | None:
        """Return the time that the phase takes, with its margin, and the delay; None before the first answer."""
        stored = self._journal.get(_name(key))
        if stored is None:
            return None
        seconds, delay = map(float, stored[1].split())
        return seconds, delay

    def _hold(self, key: PhaseKey) -> None:
        took = self._clock() - self._arrived
        delay = self._delay(key)
        if delay is None:  # the first answer failed; its time is hidden all the same
            delay = _rounded_up(_MARGIN * took)
        if took > delay:
            self._count_overrun(key, took, delay)
        self._sleep(max(0.0, self._arrived + delay - self._clock()))

    def _count_overrun(self, key: PhaseKey, took: float, delay: float) -> None:
        stored = self._journal.get(_OVERRUNS)
        count = 1 + (0 if stored is None else int(stored[1]))
        self._journal.put(_OVERRUNS, key.round, str(count).encode())
        _log.warning(
            "the answer to %s of round %d took %.2f s, longer than its delay of %.2f s, which the coordinator can see "
            "(overrun %d of this run): give this process a machine that is as fast and as free as in the first round",
            key.phase.name,
            key.round,
            took,
            delay,
            count,
        )


def _rounded_up(seconds: float) -> float:
    """Return the next larger delay of the public grid: half octaves from the shortest delay up."""
    # A coarse public grid: the exact time of the first answer depends on records, and would show with every answer.
    steps = math.ceil(2 * math.log2(max(seconds, SHORTEST_DELAY) / SHORTEST_DELAY) - 1e-9)
    return SHORTEST_DELAY * math.exp2(steps / 2)


def _name(key: PhaseKey) -> str:
    """Return the name of the delay in the journal; FedPC's clustering before training has phases of its own."""
    return f"delay of {key.phase.name}" + (" before training" if key.round == 0 else "")
