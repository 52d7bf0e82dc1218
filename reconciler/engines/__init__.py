"""Engines run work. An engine turns decisions into updates of nodes and returns their reports.

``AgentsEngine`` is the only one. Its ``apply(actions)`` makes the updates; what it observes arrives
as reports of the agents, without being asked.
"""
