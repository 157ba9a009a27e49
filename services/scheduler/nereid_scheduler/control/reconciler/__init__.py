"""Decides which models shall be served, and brings that about.

desired_models.py and next_action.py are pure: the first has what all sources ask for, the second
compares that with what is served. reconciler.py acts, and it alone changes the catalogue. Callers
wait for the outcome of what they asked for with outcomes.py.
"""

# layout: covered, pure
