"""Model control: sources say what is desired, the reconciler makes it so."""
