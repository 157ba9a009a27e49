"""The directory that is on a worker's sys.path, with the modules that model.py files import.

A worker may run another Python than the executor does, with only numpy installed. Modules in this
directory therefore import only numpy and the standard library, and run on Python 3.9.
"""
