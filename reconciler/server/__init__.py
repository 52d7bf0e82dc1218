"""HTTP server of the controller: agents' syncs, the users' API, metrics and health.

It is a separate process, so that a cycle of the loop never delays an answer. It decides nothing: it
passes on reports of nodes, sends nodes the loop's decisions, and shows what the store holds.
"""
