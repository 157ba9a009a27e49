"""The mesh on one host: the commands that know all services.

The only package that imports more than one service. No service and no tool imports it.
"""
