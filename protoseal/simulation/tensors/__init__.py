"""Engine for research: all sites of a run as tensors of one process, without sessions, journals and messages."""
