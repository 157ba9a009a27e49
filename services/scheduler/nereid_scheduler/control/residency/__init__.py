"""Models beyond memory: decides which models on demand are in memory, and on which executors.

policy.py decides; popularity.py counts how much models are requested; budgets.py has the memory
budgets from the flags; sizes.py has the memory that models took. These four do no I/O. use.py reads
the use of models, and on_demand.py has models loaded and unloaded.
"""
