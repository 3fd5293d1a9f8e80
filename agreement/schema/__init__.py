"""The agreement itself: settings that all parties share, what a run adds, and the files of each party."""
