"""Privacy accounting: ε of a history of releases, and the noise that a budget allows."""
