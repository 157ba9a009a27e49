"""Bounds on what executes at once, by the resources that instances need (--rate-limit).

`rate_limiter` decides which instances get a grant; `rate_limited_batcher` gives batches only to
instances that hold one. Pure: knows no clock and no stream.
"""

# layout: covered, pure
