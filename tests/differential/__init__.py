"""Odd models of other people's kind, served in every way and compared with a direct call.

`onnx_graphs.py` and `python_models.py` make the models and say what a direct call gives; `ways.py`
says how a request gets to a mesh and back; `comparison.py` sends each request often enough for
whatever the mesh remembers, and compares every response bit by bit; `defects.py` plants faults that
the comparison must find.
"""
