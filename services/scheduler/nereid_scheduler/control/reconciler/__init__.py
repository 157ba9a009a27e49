"""Decides which models should be served, and loads and unloads models accordingly.

desired_models.py has what all sources ask for, and next_action.py compares that with what is
served; neither does I/O. reconciler.py carries out the actions, and is the only module that changes
the catalogue. With outcomes.py callers wait for the outcome of what they asked for.
"""

# layout: covered, pure
