"""`nereid check`: what a scheduler and an executor would make of a model repository.

rehearsal.py has the scheduler's own code load it, on an executor that reads model files and loads
nothing; advice.py and directories.py say what loads and still surprises; report.py prints both.
"""
