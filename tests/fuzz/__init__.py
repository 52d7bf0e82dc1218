"""Fuzzing of what strangers send: documents, nodes' reports, tasks' lines, paths, host lists."""
