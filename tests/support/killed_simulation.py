"""A process of `protoseal simulate` that kills itself: `python -m tests.support.killed_simulation N ARGUMENTS`.

SIGKILL comes when a site's round is about to be logged for the N-th time: the site has taken its result, and has not
yet recorded that it did.
"""

from __future__ import annotations

import os
import signal
import sys

from protoseal.cli import main
from protoseal.files import SiteRound
from protoseal.run_log import RunLog


def kill_at(count: int) -> None:
    """From now on the process lives until the ``count``-th round of a site."""
    told = 0
    put = RunLog.put_site_round

    def counted(self: RunLog, site: str, figures: SiteRound) -> None:
        nonlocal told
        told += 1
        if told == count:
            os.kill(os.getpid(), signal.SIGKILL)
        put(self, site, figures)

    RunLog.put_site_round = counted  # type: ignore[method-assign]  # this process is here to die


if __name__ == "__main__":
    kill_at(int(sys.argv[1]))
    main(sys.argv[2:])
