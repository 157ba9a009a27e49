"""Classes for requests, instances, measurements and models, which all other layers use.

They decide little and do no I/O.
"""
