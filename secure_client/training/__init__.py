"""Local training of one model at one site."""
