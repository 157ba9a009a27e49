"""The gateway: clients' HTTP and gRPC on one side, the scheduler's link on the other."""
