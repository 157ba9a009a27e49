"""Settings, declared and read from flags, environment variables and TLS files.

Each service's own settings are in its `settings.py`; nothing else reads argv or the environment.
"""
