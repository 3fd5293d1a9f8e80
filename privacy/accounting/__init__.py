"""Privacy accounting: the ε of a history of releases, and the noise that keeps a history within a budget."""
