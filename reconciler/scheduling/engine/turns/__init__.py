"""The turns of a cycle: whose job is next, where it goes, and what is blocked."""
