"""What is told outside: commit statuses of forges, and webhooks.

``messages`` says what there is to tell of a revision and how each kind of channel writes it;
``delivery`` sends it, tries again, and forgets nothing that it has not counted.
"""
