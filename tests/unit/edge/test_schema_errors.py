"""What is said about a wrong field."""

import msgspec
import pytest
from msgspec import inspect

from edge.schema_errors import explain


class Body(msgspec.Struct):
    count: int


def test_a_body_is_read_once_however_many_are_wrong(monkeypatch):
    """To be refused costs no more than to be served: what fields take is not found out anew."""
    read = []
    look = inspect.type_info
    monkeypatch.setattr(inspect, "type_info", lambda kind: read.append(kind) or look(kind))
    for _ in range(3):
        with pytest.raises(msgspec.ValidationError) as caught:
            msgspec.convert({"count": "many"}, Body)
        assert explain(caught.value, Body) == "count must be a whole number"
    assert read == [Body]
