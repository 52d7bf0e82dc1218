"""The loop that wires everything together, and the controller as a process."""
