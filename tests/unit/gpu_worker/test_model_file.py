"""What is set by hand about a model."""

import pytest

from gpu_worker import model_file
from gpu_worker.dialect.chat_template import ChatTemplate
from gpu_worker.dialect.thinking import ThoughtMarkers
from gpu_worker.model_file import Dialect, ModelFile, ModelFileError

TEMPLATE = ChatTemplate(
    "{{ tools }}{% for m in messages %}{{ m.content }}"
    "{% for c in m.tool_calls %}<tool_call>{{ c.function | tojson }}{% endfor %}{% endfor %}"
)


def written(tmp_path, text):
    """Write a model file."""
    path = tmp_path / "model.toml"
    path.write_text(text)
    return path


def test_paths_are_relative_to_the_file(tmp_path):
    """Weights and template lie beside it, unless their paths are absolute."""
    path = written(
        tmp_path,
        'id = "m"\npath = "w.gguf"\n[dialect]\nchat_template = "t.jinja"\nfamily = "plain"',
    )
    (tmp_path / "t.jinja").write_text("hello")
    made = model_file.read(path)
    template = str(tmp_path / "t.jinja")
    assert made == ModelFile(
        id="m",
        path=str(tmp_path / "w.gguf"),
        dialect=Dialect(chat_template=template, family="plain"),
    )
    assert model_file.template_source(made.dialect) == "hello"
    assert model_file.read(written(tmp_path, 'id = "m"\npath = "/w"')).path == "/w"
    assert model_file.template_source(Dialect()) is None


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ('path = "w"', "`id`"),
        ('id = "m"\npath = "w"\ncolour = 1', "`colour`"),
        ('id = "m"\npath = "w"\n[dialect]\nfamily = "elvish"', "dialect.family must be one of"),
        ('id = "m"\npath = "w"\n[dialect]\nthoughts = ["<t>"]', "dialect.thoughts"),
        ('id = "m"\npath = "w"\n[dialect.efforts]\nhuge = {}', "huge"),
        ("id = ", "is not TOML"),
        ("id = " + "[" * 5000, "is not TOML"),
        ('id = ""\npath = "w"', "id and path"),
        ('id = "m"\npath = ""', "id and path"),
        ('id = "m"\npath = "~nobody-of-this-name/w"', "~nobody-of-this-name/w"),
    ],
)
def test_what_is_wrong_is_named(tmp_path, text, named):
    """The message has the file and the key."""
    path = written(tmp_path, text)
    with pytest.raises(ModelFileError) as caught:
        model_file.read(path)
    assert str(path) in str(caught.value)
    assert named in str(caught.value)


def test_a_file_that_is_missing_is_named(tmp_path):
    """Neither a model file nor a template that cannot be read passes in silence."""
    with pytest.raises(ModelFileError, match=r"none\.toml"):
        model_file.read(tmp_path / "none.toml")
    with pytest.raises(ModelFileError, match=r"none\.jinja"):
        model_file.template_source(Dialect(chat_template=str(tmp_path / "none.jinja")))
    with pytest.raises(ModelFileError, match="cannot be read"):
        model_file.template_source(Dialect(chat_template="no\0name"))


def test_what_is_said_by_hand_replaces_what_was_found():
    """Family, thoughts, stop tokens and the variables of each effort."""
    found = Dialect().profile(TEMPLATE)
    assert (found.family, found.thoughts, found.stop_tokens) == ("hermes", None, ())
    dialect = Dialect(
        family="plain",
        thoughts=["[a]", "[b]"],
        stop_tokens=["<end>"],
        efforts={"off": {"quiet": True}},
    )
    made = dialect.profile(TEMPLATE)
    assert (made.family, made.stop_tokens) == ("plain", ("<end>",))
    assert made.thoughts == ThoughtMarkers("[a]", "[b]")
    assert made.efforts == {"off": {"quiet": True}}
    assert Dialect(thoughts=[]).profile(ChatTemplate("<think>")).thoughts is None
