"""The mesh on one host: the commands that use all services.

This is the only package that imports more than one service. No service and no tool imports it.
"""
