"""The rewrite pass in a task whose store has rows: some of them, converted to the newest schema, per version."""

from holdfast.log.segments import STATE
from holdfast.pipeline.results import Tally, of_store
from holdfast.pipeline.task import Part
from holdfast.stores.access import Now, StoreColumns
from holdfast.stores.layouts.rewriter import Rewriter
from holdfast.stores.spec import StoreSpec


def rewritten(spec: StoreSpec, now: Now, entries: int, before: StoreColumns, tally: Tally) -> list[Part]:
    """Up to this number of rows of older schemas, as of `v-1`; none if the pass is off or has finished.

    Of two changes of one key the later one counts, so these come before what the batch changes. They are in a part of
    their own, by which sinks distinguish them from changes.
    """
    step = Rewriter(spec, now).step(before, entries) if entries else None
    if step is None:
        return []
    if step.rewritten:
        tally.add(of_store(spec.name, "rewritten"), step.rewritten)
    return [(STATE, spec.name, step.part)]
