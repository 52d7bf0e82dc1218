"""Takes a revision into force, object by object."""
