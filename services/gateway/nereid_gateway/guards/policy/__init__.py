"""Who may call what, and which headers become request parameters."""
