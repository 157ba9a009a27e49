"""Facts about a mesh and its models, and statements about these facts in words.

The console, `nereid explain` and `nereid check` use this package. It does no I/O.
"""

# layout: pure
