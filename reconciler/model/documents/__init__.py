"""The kinds of ``muster/v1`` as people write them: one module a kind, ``kinds`` lists them all.

These types are the public contract. The JSON Schemas in ``schemas/`` are generated from them;
``reconciler.desired`` turns what they hold into the normalised objects of ``model.desired``.
"""
