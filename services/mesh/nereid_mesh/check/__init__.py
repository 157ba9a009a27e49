"""`nereid check`: how a scheduler and an executor would serve a model repository.

rehearsal.py has the scheduler's own code load the repository, on an executor that reads model files
and loads nothing. advice.py and directories.py find what surprises although it loads. report.py
prints both.
"""
