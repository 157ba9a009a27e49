"""The endpoint `infer`: its request, run and response."""

# layout: compiled
