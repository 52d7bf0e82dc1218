"""Rows of a table by what one of its columns says."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class RowGroups:
    """Rows by the values of a column, each group in the order of the rows."""

    order: NDArray[np.intp]
    starts: NDArray[np.intp]

    @classmethod
    def of(cls, column: NDArray[np.int64], groups: int) -> "RowGroups":
        """Group by the values of a column, which are not negative and below ``groups``."""
        order = np.argsort(column, kind="stable")
        return cls(order, np.searchsorted(column[order], np.arange(groups + 1)))

    def members(self, group: int) -> NDArray[np.intp]:
        """Rows of one group."""
        return self.order[self.starts[group] : self.starts[group + 1]]
