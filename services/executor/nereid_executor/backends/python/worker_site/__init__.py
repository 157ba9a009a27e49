"""The directory on the path of Python models' workers: the modules that model.py files import.

A worker may run another Python than the executor, with numpy and nothing else installed. So modules
in this directory import only numpy and the standard library, and run on Python 3.9.
"""
