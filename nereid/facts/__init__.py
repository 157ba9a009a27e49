"""Facts about a mesh and its models, and statements about these facts in words.

The gateway's console, `nereid explain` and `nereid check` use this package. It does no I/O and
depends on no service.
"""

# layout: pure
