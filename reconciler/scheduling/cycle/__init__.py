"""One scheduling cycle: attempts, actions, results."""
