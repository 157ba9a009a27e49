"""Ports of managed hosting: Amazon SageMaker's and Vertex AI's routes, as Triton serves them.

Each port is a further HTTP listener that turns a call into one of the KServe routes and hands it to
the guards and the front of the HTTP port. A gateway without these ports imports nothing of the
package but its settings.
"""
