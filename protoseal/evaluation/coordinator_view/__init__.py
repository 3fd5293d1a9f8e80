"""Search of what the coordinator received for traces of the sites' values."""
