"""The pages that the site makes of sources leave nothing of the API and of the protos out."""

import re
import sys
from fnmatch import fnmatchcase
from importlib import import_module
from itertools import chain
from pathlib import Path

import pytest

from edge.openapi import openapi

ROOT = Path(__file__).parents[2]
SITE = ROOT / "docs/site"


@pytest.fixture
def made(monkeypatch):
    """Modules of the site import each other as Sphinx lets them."""
    monkeypatch.syspath_prepend(SITE)
    yield import_module
    for name, module in list(sys.modules.items()):
        if SITE in Path(getattr(module, "__file__", None) or "/").parents:
            del sys.modules[name]


@pytest.fixture
def protos(made):
    return made("proto_reference").render(ROOT / "protos")


def test_each_proto_is_a_page(protos):
    """Each file of protos/ has a page of its name."""
    assert protos.keys() == {file.stem for file in (ROOT / "protos").rglob("*.proto")}


def test_each_definition_is_told(protos):
    """Each message, enum, call, field and value stands on the page of its file."""
    for page, text in protos.items():
        descriptor = import_module(f"fastrun.v1.{page}_pb2").DESCRIPTOR
        for message in descriptor.message_types_by_name.values():
            assert f"\n## {message.name}\n" in text
            for field in message.fields:
                assert f"| `{field.name}` | {field.number} | " in text
        for enum in descriptor.enum_types_by_name.values():
            for value in enum.values:
                assert f"| `{value.name}` | {value.number} | " in text
        for service in descriptor.services_by_name.values():
            for method in service.methods:
                assert f"\n### {service.name}/{method.name}\n" in text


def test_comments_are_told(made, protos):
    """A comment stands with what it is about: the one of a call, of a field and of an enum's value."""
    prose = made("markdown_text").prose
    scheduler = protos["scheduler"].split("### SchedulerService/ListModels\n")[1].split("###")[0]
    assert prose("The models that were ever served here") in scheduler
    assert (
        "| `waited_ms` | 5 | uint32 | How much of that it has waited already, at another scheduler"
        " or before a retry. |"
    ) in protos["scheduler"]
    assert "[ListModelsRequest](#fastrun.v1.ListModelsRequest) → " in scheduler
    assert "`item` is one of `hello`, `acquire`, " in protos["scheduler"]
    assert "| `FINISH_REASON_ABORTED` | 3 | The edge asked for it. |" in "".join(protos.values())


def test_the_api_is_told(made):
    """Each path, field, error and header of the OpenAPI document stands on the page."""
    text = made("api_reference").render("1.2.3")
    document = openapi("1.2.3")
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            assert f"## {operation['summary']}\n\n`{method.upper()} /v1{path}`" in text
    for schema in document["components"]["schemas"].values():
        for field in schema["properties"]:
            assert f"| `{field}`" in text
    for status in document["components"]["responses"]:
        assert f"\n| {status} | " in text
    for header in document["components"]["headers"]:
        assert f"\n| `{header.lower()}` | " in text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a <b> | [c](d)\n  *e*", r"a \<b> \| \[c\](d) \*e\*"),
        ("`a | <b>` and `c`", r"`a \| <b>` and `c`"),
    ],
)
def test_prose(made, text, shown):
    """Words of sources are shown as they are, in one cell of a table; what is code stays code."""
    assert made("markdown_text").prose(text) == shown


def test_each_diagram_has_its_picture(made):
    """The picture of a diagram shows the text that stands on the page now, and no picture is left over."""
    site = made("diagrams")
    found = [each for page in site.pages() for each in site.diagrams_of(page.read_text())]
    assert found
    assert {site.picture_of(each) for each in found} == set(site.PICTURES.iterdir())
    for each in found:
        picture = site.picture_of(each).read_text()
        named = re.findall(r"participant \w+ as (\w+)", each)
        assert all(f">{name}</tspan>" in picture for name in named)


def test_each_page_is_in_the_menu(made):
    """Each page is named by the menu of the site, whose build fails for the lack of one."""
    menu = made("contents")
    below = (each for _, *pages in menu.BELOW.values() for each in pages)
    named = [*chain.from_iterable(menu.CONTENTS.values()), *below, "README"]
    for page in made("diagrams").pages():
        name = page.relative_to(ROOT).with_suffix("").as_posix()
        assert any(fnmatchcase(name, each) for each in named), name
