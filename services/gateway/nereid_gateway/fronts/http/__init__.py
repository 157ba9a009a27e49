"""KServe v2 over HTTP, and Triton's extensions.

A request goes from `server` (HTTP/1.1) to `front` (routes) to a handler in `endpoints` or
`inference`. The handler sends inference to the data plane, and all else to the scheduler.
"""

# layout: compiled
