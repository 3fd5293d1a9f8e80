"""One thread for each process: the models are tiny, and waiting for other threads is what would take the time."""

import os

# Read when numpy and torch are first imported; processes that tests start inherit it.
os.environ.setdefault("OMP_NUM_THREADS", "1")
