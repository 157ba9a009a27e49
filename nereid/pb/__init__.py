"""Generated protobuf stubs (`make proto`), in a descriptor pool of their own."""
