"""Access control inside the mesh: roles, tokens, credentials, and the guard of a mesh port.

The access flags that all services share are also in this package. It depends on no service.
"""
