"""OpenAI's API and its relatives (Cohere's, Jina's, TEI's, vLLM's) over the mesh's text models.

Each text of a call becomes one row: an inference request of its own. The rest of the gateway knows
nothing of this package, except for the routes.
"""
