"""Evidence about a run: what its coordinator's recorded messages give away."""
