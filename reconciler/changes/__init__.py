"""Changes to the desired repository: edits of YAML that keep comments, commits, rebases
and pushes.
"""
