"""The process that sends copies of requests to the other server, and compares the responses."""
