"""Claims of sessions on instances, and reports to the sessions of executions that have begun."""

# layout: covered, pure
