"""Routes of requests to schedulers, and the table of requests without a response yet."""

# layout: compiled, covered
