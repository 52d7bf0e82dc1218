"""The folder, Python environment and modules that a task is submitted with."""
