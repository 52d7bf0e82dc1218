"""Authentication and authorization of API calls."""
