"""The site's commands before and after each job on a node."""
