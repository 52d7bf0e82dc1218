"""Plans: what a change would do, as text, JSON and pull request comments."""
