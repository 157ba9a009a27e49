"""Ports for managed hosting: the routes of Amazon SageMaker and Vertex AI, as Triton serves them.

Each port turns a call into a call of a KServe route, which passes the guards of the HTTP port.
"""
