"""Classes for requests, instances, measurements and models, which all other layers use."""
