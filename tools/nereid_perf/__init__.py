"""Load tool `nereid perf`, which measures any KServe v2 server and imports no service of Nereid."""
