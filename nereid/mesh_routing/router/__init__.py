"""Routes of requests to schedulers, and the table of requests that wait for a response."""

# layout: compiled, covered
