"""The fronts for both protocols.

Each translates its protocol and passes requests to the data plane.
"""

# layout: compiled
