"""The gRPC service and the proxy in front of it."""
