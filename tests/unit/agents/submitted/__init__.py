"""Tests of ``agents.submitted``."""
