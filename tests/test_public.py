"""What `holdfast` exports: listed, there, and cheap until used."""

import subprocess
import sys

import holdfast


def test_every_listed_name_is_there() -> None:
    assert all(getattr(holdfast, name) is not None for name in holdfast.__all__)


def test_the_list_is_what_is_exported() -> None:
    assert sorted(holdfast.__all__) == sorted(holdfast._HOME_OF)
    assert set(dir(holdfast)) == set(holdfast.__all__)


def test_an_instance_loads_neither_spark_nor_pandas() -> None:
    code = (
        "import sys; from holdfast.lean import leave_pandas_out; leave_pandas_out(); import holdfast.serving, pyarrow; "
        "pyarrow.array([1]); print(sorted({'pyspark', 'pandas'} & set(sys.modules)))"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
