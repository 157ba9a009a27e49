"""What workers of Python models have on their path: the modules that model.py files import.

Workers may run another Python than the executor, with numpy and nothing else installed: what is
here knows numpy and the standard library alone, and runs on Python 3.9.
"""
