"""Models beyond memory: which of those that are loaded on demand are in memory, and where.

Pure: policy.py decides, popularity.py counts what models are asked for, budgets.py has what flags
say, sizes.py how much memory models took. use.py reads what models are used for, on_demand.py loads
and unloads them.
"""
