<<<<<<< HEAD
"""The two protocols: both translate, and hand requests to the data plane."""

# layout: compiled
=======
"""The fronts for both protocols.

Each translates its protocol and passes requests to the data plane.
"""
>>>>>>> r-e
