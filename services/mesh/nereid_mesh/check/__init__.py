"""`nereid check`: shows how a scheduler and an executor would serve a model repository.

rehearsal.py lets the scheduler's own code load the repository, on an executor that reads model
files but loads nothing. advice.py and directories.py find surprises in models that load without an
error. report.py prints the results of both.
"""
