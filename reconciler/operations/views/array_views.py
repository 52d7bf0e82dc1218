"""Arrays as people and programs see them: which of their elements are in which state."""

import msgspec

from reconciler.model.state import records
from reconciler.operations.views import view_types


def with_indexes(shown: view_types.JobView, record: records.JobRecord) -> view_types.JobView:
    """Return the view of an array with the indexes in each state; others as they are."""
    if record.spec.array_count is None:
        return shown
    indexes = {state.value: text for state, text in record.elements_by_state().items()}
    return msgspec.structs.replace(shown, element_indexes=indexes)
