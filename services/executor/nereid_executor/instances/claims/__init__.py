"""Claims of sessions on instances, and what they are told of begun executions."""

# layout: covered, pure
