"""The reconciler: compares the desired models with the served ones, and acts on the difference.

core/models/desired_models.py keeps what all sources ask for. next_action.py, which is pure,
compares that with the served models. reconciler.py acts, and it alone changes the catalogue.
Callers wait for outcomes with control/outcomes.py.
"""

# layout: covered, pure
