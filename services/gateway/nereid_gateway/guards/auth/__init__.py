"""Client authentication (--auth-config): who sends a call, what that client may call and how often.

Authentication is off by default; calls then pass through none of this code.
docs/operators/authentication.md describes the file.

    access          authorizes calls for policy/call_policy; counts and logs refusals
    authenticator   credentials -> principal; tokens verifies JSON Web Tokens
    config, reload  reading the file, at the start and after each change
    principal       a client: its grant (permissions, limits) and its usage of the limits
    limited_infer   a step in front of the data plane, which checks gRPC messages
"""
