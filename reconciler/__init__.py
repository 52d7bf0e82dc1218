"""The control plane of Muster: from a git repository of desired state to decisions and records.

Data flows one way: ``desired`` reads a revision, ``core`` compares it with what is observed and
calls ``scheduling``, ``store`` makes the outcome durable, ``engines`` carry it to the nodes.
``model`` holds the nouns that all of them share.
"""

__version__ = "0.1.0"
