"""The nouns of Muster: documents as written, desired state, records, messages.

Nothing here does input or output, reads a clock or draws a random number. Every value is a frozen
``msgspec.Struct``. Every other package may import these modules; they import none.
"""
