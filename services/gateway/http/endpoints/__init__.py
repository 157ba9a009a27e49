"""What each HTTP route does: a body to a call of the data plane, and its result to a response."""
