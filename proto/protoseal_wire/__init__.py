"""The wire: schema, generated stubs and the codec."""
