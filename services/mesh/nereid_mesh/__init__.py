"""The mesh on one host: the commands that use all services.

Only this package imports more than one service. No service and no tool imports it.
"""
