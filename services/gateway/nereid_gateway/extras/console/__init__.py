"""The console: facts about the mesh for its operators, streamed to a page that shows them.

nereid.facts.document defines the facts. Without --console, no module of this package is imported.
"""
