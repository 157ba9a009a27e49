"""Client authentication (--auth-config): who sends a call, what that client may call and how often.

Authentication is off by default. Without it, no call passes through this code.
docs/operators/authentication.md describes the file.

    access          authorizes calls for policy/call_policy; counts and logs refusals
    authenticator   finds the principal that credentials stand for
    tokens          verifies JSON Web Tokens
    config, reload  read the file at the start and after each change
    limited_infer   is a step in front of the data plane, which checks gRPC messages

A principal (core/access/principal) is a client with its grant (permissions, limits) and its usage
of the limits.
"""
