"""Who may do what inside the mesh: roles, tokens, credentials, and the guard of a mesh port.

Knows neither services nor their settings (nereid.config.mesh_access has the flags).
"""
