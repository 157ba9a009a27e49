"""Client authentication (--auth-config): who sends a call, and what that client may do.

Without --auth-config, no call passes through this code.
"""
