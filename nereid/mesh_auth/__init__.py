"""Who may do what inside the mesh: roles, tokens, credentials, the guard of a mesh port, and the
flags that all services share. Knows no service.
"""
