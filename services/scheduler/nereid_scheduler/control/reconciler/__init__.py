"""The reconciler: compares the desired models with the served ones, and acts on the difference."""

# layout: covered, pure
