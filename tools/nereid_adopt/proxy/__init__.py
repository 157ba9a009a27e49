"""The proxy: clients' connections over HTTP/1.1 and HTTP/2, and connections to both servers."""
