"""Ports for managed hosting: the routes of Amazon SageMaker and Vertex AI, as Triton serves them.

Each managed port is an additional HTTP listener. It turns a call into a call of a KServe route and
passes it to the guards and the front of the HTTP port. A gateway without managed ports imports only
the settings of this package.
"""
