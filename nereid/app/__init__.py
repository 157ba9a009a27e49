"""Python first: a function becomes an endpoint in one file.

`nereid.model` marks a function or class, `nereid.serve` writes its model repository and starts
`nereid serve` with it. Nothing here serves: that is the mesh's. Services must not import this.
"""
