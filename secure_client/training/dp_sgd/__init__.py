"""Local training by DP-SGD, and whether a model supports it."""
