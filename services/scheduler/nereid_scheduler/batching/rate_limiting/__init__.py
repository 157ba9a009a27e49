"""Limits which instances execute at once, by the resources that they need (--rate-limit).

`rate_limiter` decides which instances get a grant, and `rate_limited_batcher` gives batches only to
instances that hold a grant. The package is pure: it knows no clock and no stream.
"""

# layout: covered, pure
