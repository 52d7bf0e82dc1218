"""Quotas and budgets: usage, accounts, and what exceeds a limit."""
