"""KServe v2 over HTTP: routes, endpoints and the JSON they speak.

`server` is HTTP/1.1 itself and knows no route; `endpoints` translate to and from the data plane.
"""
