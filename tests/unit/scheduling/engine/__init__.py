"""Tests of the engine over columns."""
