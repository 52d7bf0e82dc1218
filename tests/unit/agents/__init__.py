"""Tests of the node agent's pure parts."""
