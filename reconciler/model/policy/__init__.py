"""Values of policy: access rules and kinds of drift."""
