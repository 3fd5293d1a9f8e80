"""Systems that :mod:`benchmarks.frameworks` compares, each a process that reads a :class:`work.Work` and trains it."""
