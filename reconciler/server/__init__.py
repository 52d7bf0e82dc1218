"""The controller's face: agents' syncs, the users' API, metrics and health, over HTTP.

A process of its own, so that a cycle of the loop never delays an answer. It decides nothing: it
passes on what nodes say, tells nodes what the loop has decided, and shows what the store holds.
"""
