"""Reservations and backfill around them."""
