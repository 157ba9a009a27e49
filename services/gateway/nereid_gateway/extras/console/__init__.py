"""The console: facts of the mesh for whoever operates it, streamed to a page that shows them.

nereid.facts.document says what they are. queries.py, models_page.py, sections.py and merge_patch.py
decide, purely, what a console gets; look.py asks the mesh; hub.py has the consoles that are open;
endpoints.py is their HTTP side. Without --console none of it is imported.
"""
