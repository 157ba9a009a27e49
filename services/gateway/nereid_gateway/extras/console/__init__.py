"""The console: facts about the mesh for its operators, streamed to a page that shows them.

nereid.facts.document defines the facts. The modules queries.py, models_page.py, sections.py and
merge_patch.py do no I/O; they decide what a console gets. look.py reads the facts from the mesh,
hub.py holds the open consoles, and endpoints.py serves the consoles over HTTP. Without --console no
module of this package is imported.
"""
