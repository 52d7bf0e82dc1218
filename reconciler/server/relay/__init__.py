"""The relay of sessions: a process of its own that joins a person's connection with a node's."""
