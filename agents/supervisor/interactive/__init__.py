"""Commands and connections of people in tasks that run: what the supervisor does for them."""
