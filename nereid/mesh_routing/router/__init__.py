"""Table of the requests that wait for a response, and the link to a mesh's only scheduler."""

# layout: compiled, covered
