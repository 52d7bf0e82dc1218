"""The module ``muster`` that tasks can import; it is copied to where all tasks of a node
find it.
"""
