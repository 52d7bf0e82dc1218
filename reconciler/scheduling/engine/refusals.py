"""What the engine does not decide yet, and how it says so."""

from enum import StrEnum


class Trait(StrEnum):
    """What is not covered. Entries may only go. Values are for people."""

    CARRIED = "a reservation of an earlier cycle on several nodes for one task"
    DEADLINES = "deadlines"
    ELASTIC = "elastic gangs"
    GROUPS = "jobs of several task groups"
    LEVELS = "topology constraints"
    AFFINITY = "affinities"
    EXCLUSIVE = "whole nodes for one job"
    SCORES = "preferred nodes"
    SPREAD = "spreading over nodes"
    DEVICES = "MIG instances, GPU memory, several shared GPUs, or GPUs near each other"
    POOLS = "caps on what all work may have in a pool"
    LENDING = "lending limits"
    WINDOWS = "reservations and maintenance windows"


class NotCovered(Exception):  # noqa: N818 - no error: the present cycle decides instead
    """The engine does not decide this snapshot.

    Attributes:
        trait: what it does not cover.
    """

    def __init__(self, trait: Trait) -> None:
        super().__init__(f"not covered: {trait.value}")
        self.trait = trait
