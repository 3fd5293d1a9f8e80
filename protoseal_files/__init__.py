"""Files on disk, for every other package: durable writes, locks, a file that is only appended to, and SQLite."""
