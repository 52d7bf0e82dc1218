"""Preemption: victims, reclaim, consolidation."""
