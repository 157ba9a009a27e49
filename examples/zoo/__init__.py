"""The example models, one module each, and what their makers share.

Nothing in here knows Nereid: a maker writes a model repository that any server of Triton's layout
can read, and the clients compare a server's responses with the references beside each model.
"""
