"""The coordinator: round machine, store, aggregation bridge and gRPC service."""
