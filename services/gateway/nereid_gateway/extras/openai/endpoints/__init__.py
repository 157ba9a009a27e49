"""Handlers of the routes: they translate bodies to rows, and rows' outputs to bodies."""
