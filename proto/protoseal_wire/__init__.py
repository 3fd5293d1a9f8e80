"""Wire format: protobuf schema, generated stubs, plain message values and the codec between them."""
