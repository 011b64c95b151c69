"""A global table in a processor: every row can be read, none can be changed.

    class Prices(hf.Processor):
        products = hf.GlobalStore("products", value=Product)

        def process(self, key, event, ctx):
            product = self.products.get(event.product)

A declaration names the table; `bind` returns a working copy that reads its rows in one version.
"""

from collections.abc import Callable, Sequence
from typing import Any, Generic, NoReturn, Self, overload

import msgspec

from holdfast.errors import BadValue, ErrorCategory, HoldfastError, TopologyError, shown
from holdfast.stores.access import Now, ReadableBytes
from holdfast.stores.codecs.base import name_of
from holdfast.stores.codecs.values import StoreCodec
from holdfast.stores.formats.keys import key_schema_of
from holdfast.stores.formats.types import Schema
from holdfast.stores.kinds.base import K1, K2, Declaration, K, Prefetch, V
from holdfast.stores.kinds.coding import codec_for
from holdfast.stores.kinds.keyvalue import ReadOnlyKeyValueStore
from holdfast.stores.spec import StoreSpec, check_name

Row = dict[str, Any]


class NotWritable(HoldfastError):
    """A processor has tried to change a global table."""

    category = ErrorCategory.INVALID


class GlobalStore(Declaration, ReadOnlyKeyValueStore[K, V], Generic[K, V]):
    """Declares that a processor reads a global table of the app: `get`, `get_many`, `range`, `items`, `prefix` ...

    A value is a row: a dictionary of its columns, or an object of the type `value`, whose fields have their names.
    """

    @overload
    def __init__(self: "GlobalStore[str, Row]", name: str) -> None: ...

    @overload
    def __init__(self: "GlobalStore[str, V]", name: str, *, value: type[V]) -> None: ...

    @overload
    def __init__(self: "GlobalStore[K, Row]", name: str, *, key: type[K]) -> None: ...

    @overload
    def __init__(self, name: str, *, key: type[K], value: type[V]) -> None: ...

    @overload
    def __init__(
        self: "GlobalStore[tuple[K1, K2], V]", name: str, *, key: tuple[type[K1], type[K2]], value: type[V]
    ) -> None: ...

    def __init__(self, name: str, *, key: Any = str, value: Any = dict) -> None:
        check_name(name)
        self._name = name
        self._type = value
        self.key_schema: Schema = key_schema_of(key)

    def check(self, spec: StoreSpec, key: Schema) -> None:
        """Raises if the rows of a table, with this key in Python's types, can't be read as declared."""
        if [field.type for field in self.key_schema.fields] != [field.type for field in key.fields]:
            raise TopologyError(
                f"{self!r}: the table's key is ({spec.key}), and the declared one ({self.key_schema}). Name its types: "
                "hf.GlobalStore(..., key=...)."
            )
        known = [field.name for field in spec.columns.fields if not field.hidden_in]
        missing = [name for name in _required(self._type, repr(self)) if name not in known]
        if missing:
            raise TopologyError(
                f"{self!r}: {name_of(self._type)} has the field {missing[0]!r}, and the table has no such column. It "
                f"has {', '.join(known)}. Rename the field, or give it a default."
            )

    def bind(self, spec: StoreSpec, bytes_: ReadableBytes, now: Now) -> Self:
        """A working copy over the rows of the table in one version."""
        bound = type(self).__new__(type(self))
        bound.__dict__.update(self.__dict__)
        bound._attach(spec, bytes_, now, codec_for(spec, Any))
        return bound

    def _attach(self, spec: StoreSpec, bytes_: ReadableBytes, now: Now, codec: StoreCodec[V]) -> None:
        super()._attach(spec, bytes_, now, codec)
        read: Callable[[bytes], Any] = self._values.read
        hidden = [field.name for field in spec.columns.fields if field.hidden_in]
        of_type = None if self._type is dict else self._type

        def row(cell: bytes) -> Any:
            found = read(cell)
            for name in hidden:
                del found[name]
            return found if of_type is None else self._typed(found)

        self._read = row
        self._read_many = lambda cells: [row(cell) for cell in cells]

    def _typed(self, row: Row) -> Any:
        try:
            return msgspec.convert(row, self._type, strict=False)
        except msgspec.ValidationError as error:
            raise BadValue(
                f"a row of the global table {self._name!r} can't be a {name_of(self._type)}: {error}. It was "
                f"{shown(row)}."
            ) from error

    def prefetch(self, keys: Sequence[K], times: Sequence[int]) -> Prefetch:
        """What `process` will read, for `Processor.prefetch`."""
        return Prefetch(self._encode_many(list(dict.fromkeys(keys))), [])

    def _refuse(self, *args: object, **options: object) -> NoReturn:
        raise NotWritable(
            f"{self!r} is a global table, and a processor can only read it: every task would see another table. Send "
            "the change to the table's source, or keep it in a store of the processor."
        )

    put = __setitem__ = delete = __delitem__ = pop = update = setdefault = put_if_absent = put_many = _refuse


def _required(type_: Any, where: str) -> list[str]:
    """The fields that a row must have to become an object of a type."""
    if type_ is dict:
        return []
    fields = getattr(msgspec.inspect.type_info(type_), "fields", None)
    if fields is None:
        raise TopologyError(
            f"{where}: value={name_of(type_)} has no fields for the columns of a row. Use a msgspec.Struct, a "
            "dataclass or a TypedDict, or leave value= out for dictionaries."
        )
    return [field.encode_name for field in fields if field.required]
