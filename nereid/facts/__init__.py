"""Facts about a mesh and its models, and statements about them in words.

The gateway's console, `nereid explain` and `nereid check` use them. Pure: no service, no socket.
"""

# layout: pure
