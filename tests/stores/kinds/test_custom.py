"""An own kind of store: a count-min sketch."""

import pytest

import holdfast as hf
from holdfast.errors import TopologyError
from holdfast.stores.kinds import store_class, view_of
from holdfast.stores.kinds.queries import Query
from tests.stores.kinds.sketch import ReadOnlySketch, Sketch


def test_a_kind_is_named_by_its_place() -> None:
    declared = Sketch("views")
    spec = declared.spec()
    assert spec.kind == "tests.stores.kinds.sketch:Sketch"
    assert store_class(spec.kind) is Sketch


def test_an_own_kind_is_declared_bound_and_read_like_any_other() -> None:
    bytes_, declared = hf.DictBytes(), Sketch("views")
    with pytest.raises(hf.NotBound):
        declared.estimate("a")
    first = declared.bind(bytes_, hf.Now(wall=0))
    for word in ["a", "a", "a", "b"]:
        first.add(word)
    second = declared.bind(bytes_, hf.Now(wall=0))
    assert second.estimate("a") >= 3
    assert second.estimate("b") >= 1
    view = view_of(declared.spec(), bytes_, hf.Now(wall=0), value=int)
    assert isinstance(view, ReadOnlySketch)
    assert view.estimate("a") == second.estimate("a")
    assert not hasattr(view, "add")


@pytest.mark.parametrize("kind", ["nowhere:Store", "tests.stores.kinds.sketch:Nothing", "holdfast:App", "rows"])
def test_an_unknown_kind_is_refused(kind: str) -> None:
    with pytest.raises(TopologyError, match="kind"):
        store_class(kind)


@pytest.mark.parametrize("name", ["keys", "version", "more", "Top", "a/b"])
def test_a_query_has_a_name_of_its_own(name: str) -> None:
    with pytest.raises(TopologyError, match="can't name a query"):
        Query(name, lambda view, key: ())
