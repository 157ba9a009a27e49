"""The endpoint `infer`: decoding of requests, submission, and encoding of responses."""

# layout: compiled
