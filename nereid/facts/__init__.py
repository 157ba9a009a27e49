"""What a mesh says of itself and of its models: structured facts, and what they mean, in words.

The gateway's console and `nereid explain` both say it from here. Pure: knows no service, no socket.
"""
