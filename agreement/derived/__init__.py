"""Facts that follow from an agreement: cohorts, phases, shapes of payloads, and means from sums."""
