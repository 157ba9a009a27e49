"""Client authentication (--auth-config): who sends a call, what that client may call and how often.

Off by default; then nothing of this stands in the path of a call. docs/operators/authentication.md
describes the file.

    access          what policy/call_policy asks; counts and logs refusals
    authenticator   credentials -> principal; tokens verifies JSON Web Tokens
    config, reload  the file
    principal       a client: its grant (permissions, limits) and its usage of the limits
    limited_infer   in front of the data plane, for gRPC's messages
"""
