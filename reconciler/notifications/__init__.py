"""Notifications: commit statuses of forges, and webhooks.

``messages`` makes a message for each kind of channel; ``delivery`` sends it, retries, and counts
everything that it gives up.
"""
