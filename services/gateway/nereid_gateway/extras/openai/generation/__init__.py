"""Generated texts: prompts, the requests of a call, and what becomes of their responses.

Nothing here knows an API's bodies or events.
"""
