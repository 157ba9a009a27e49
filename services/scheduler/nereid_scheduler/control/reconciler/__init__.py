"""The reconciler: compares the desired models with the served ones, and acts on the difference.

next_action.py is pure. reconciler.py acts, and it alone changes the catalogue.
"""

# layout: covered, pure
