"""Commands that review the repository and its history."""
