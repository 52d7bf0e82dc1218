"""The controller: the loop that calls the core, the threads around it, and the process."""
