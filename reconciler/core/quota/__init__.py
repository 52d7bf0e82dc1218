"""Quotas and budgets: use, accounts, and what exceeds a limit."""
