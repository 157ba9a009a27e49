"""The console: facts about the mesh for its operators, streamed to a page that shows them.

nereid.facts.document defines the facts. The pure modules queries.py, models_page.py, sections.py
and merge_patch.py decide what a console gets; look.py asks the mesh; hub.py has the open consoles;
endpoints.py is their HTTP side. Without --console nothing of this package is imported.
"""
