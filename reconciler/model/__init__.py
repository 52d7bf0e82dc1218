"""The nouns of Muster: documents as written, objects as normalised, records, wire messages.

Nothing here does input or output, reads a clock or draws a random number. Every value is a
frozen ``msgspec.Struct``; every other package may import these modules and they import none.
"""
