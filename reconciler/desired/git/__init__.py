"""Reads commits, trees and objects of the desired repository."""
