"""Scenarios whose outcome differs on purpose, each with a reason that a user would accept.

The key is ``FOLDER/FILE`` of the document. A scenario is never edited to fit. One that agrees again
must leave this list: a test holds that.
"""

MEANT: dict[str, str] = {
    "kai/allocate-alone-8.yaml": (
        "Of two queues that are served alike, with and without what each would start next, the "
        "older goes first, whichever has the larger share."
    ),
    "kai/allocate-elastic-6.yaml": (
        "Elastic jobs of one queue and priority grow in order of arrival, the older one as far as "
        "it can, like all else that waits there. Growing by turns would resize each of them again "
        "and again, and a resize is a restart where a job's world is fixed."
    ),
    "kai/consolidation-13.yaml": (
        "No task of an elastic job is moved to make room: that is to shrink the job and to grow it "
        "again, two restarts where its world is fixed. Who may claim the room by quota or priority "
        "takes the task."
    ),
    "kai/consolidation-15.yaml": (
        "Work is moved so that other work starts, not so that what already runs with its minimum "
        "grows: that is worth no restart of somebody else."
    ),
}
