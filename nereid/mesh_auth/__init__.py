"""Access control inside the mesh: roles, tokens, credentials, and the guard of a mesh port."""
