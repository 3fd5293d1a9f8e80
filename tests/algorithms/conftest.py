"""Settings for the property tests."""

from hypothesis import settings

# Timings vary with the machine's load (the first call into torch takes most of a second): no deadline.
settings.register_profile("algorithms", deadline=None)
settings.load_profile("algorithms")
