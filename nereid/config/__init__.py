"""How settings are declared and read: flags, environment variables, TLS files.

Each service's own settings are in its `settings.py`; nothing else reads argv or the environment.
"""
