"""Notifications of one's own: news of a person's jobs by Slack, e-mail or webhook.

``letters`` gathers news, ``forms`` writes them, ``personal_sender`` sends one, ``people_notifier``
decides when.
"""
