"""The round machine: states, events, transitions and preconditions, free of input and output."""
