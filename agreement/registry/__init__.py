"""Methods and protections by name, built-in ones and those of other distributions, and which pairs can run."""
