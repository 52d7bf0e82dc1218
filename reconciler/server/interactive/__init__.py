"""Sessions of people in tasks: who may have one, its tickets, and what is written down of it."""
