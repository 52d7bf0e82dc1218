"""Tests of the house itself: layout, names, and prose of the code and the docs."""
