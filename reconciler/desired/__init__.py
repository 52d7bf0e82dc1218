"""From git to desired state: read a revision, check it, authorize it, take it into force."""
