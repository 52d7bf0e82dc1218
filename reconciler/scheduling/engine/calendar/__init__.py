"""Amounts and nodes kept in time: for whom limits hold back, and for whom nodes come free."""
