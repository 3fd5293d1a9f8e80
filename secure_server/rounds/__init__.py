"""The round machine: states, events, transitions and tasks, free of input and output."""
