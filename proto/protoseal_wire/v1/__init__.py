"""Generated protobuf stubs of version 1 of the schema."""
