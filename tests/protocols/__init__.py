"""Every interleaving of the protocols between processes, up to a bound; docs/protocols.md has them.

A test module here has one protocol's world: the product's own state machines, wired to channels
that keep their order, break, and stand still. It explores the world, and then shows that the
explorer finds each of a list of deliberate faults. What is tested otherwise does not belong here.
"""
