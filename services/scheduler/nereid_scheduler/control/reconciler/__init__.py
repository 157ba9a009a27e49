"""Which models shall be served, and how that comes about.

Pure: desired_models.py has what all sources ask for, next_action.py compares it with what is
served. reconciler.py acts, and alone changes the catalogue; who asked waits by outcomes.py.
"""
