"""Models beyond memory: which models on demand are in memory, and on which executors.

policy.py decides, popularity.py counts how much models are requested, budgets.py has what flags
say, and sizes.py how much memory models took; these are pure. use.py reads what models are used
for, and on_demand.py has them loaded and unloaded.
"""
