"""Gateway and scheduler in one process, joined by a memory link: the composition root of that process.

Only this module and services.plan may know two services.
"""
