"""Access control inside the mesh: roles, tokens, credentials, and the guard of a mesh port.

The flags of access, which all services share, are here as well. Knows no service.
"""
