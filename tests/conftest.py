"""One thread for each process, and no time that a test of a property has to keep to."""

import os

from hypothesis import HealthCheck, settings

# The models are tiny, and waiting for other threads is what would take the time. Read when numpy and torch are first
# imported; processes that tests start inherit it.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# By itself an example may take 200 ms, and drawing them a second: times vary with the machine's load.
settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")
