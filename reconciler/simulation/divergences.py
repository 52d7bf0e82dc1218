"""Scenarios whose outcome differs here on purpose, each with a reason that a user would accept.

The key is ``FOLDER/FILE`` of the document. A scenario is never edited to fit, and one that agrees
again is to be taken off this list: a test holds that.
"""

MEANT: dict[str, str] = {}
