"""Comparison of two servers' responses to the same requests: rules, differences, and a report.

Services that only pass on messages import `responses` and `rules` alone: the others need numpy.
"""

# layout: covered
