"""What is set by hand about a model."""

import msgspec
import pytest

from gpu_worker import model_file
from gpu_worker.config import Config
from gpu_worker.dialect.chat_template import ChatTemplate
from gpu_worker.dialect.thinking import ThoughtMarkers
from gpu_worker.model_file import Dialect, ModelFile, ModelFileError, PublicFacts

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
        ('path = "w"', "id is missing"),
        ('id = "m"\npath = "w"\ncolour = 1', "there is no key colour: "),
        ('id = "m"\npath = "w"\n[dialect]\nfamily = "elvish"', "dialect.family must be one of"),
        ('id = "m"\npath = "w"\n[dialect]\nthoughts = ["<t>"]', "dialect.thoughts"),
        (
            'id = "m"\npath = "w"\n[dialect.efforts]\nhuge = {}',
            "dialect.efforts: Invalid enum value 'huge'",
        ),
        ('id = "m"\npath = "w"\nengine = 1', "engine must be a table"),
        ('id = "m"\npath = "w"\n[dialect]\nthoughts = [1, "b"]', "dialect.thoughts must be text"),
        ("id = ", "is not TOML"),
        ("id = " + "[" * 5000, "is not TOML"),
        ('id = ""\npath = "w"', "id must not be empty"),
        ('id = "m"\npath = ""', "either path or hub"),
        ('id = "m"\npath = "w"\nhub = "o/n"', "either path or hub"),
        ('id = "m"\nhub = "n"', "hub must be owner/name, not 'n'"),
        ('id = "m"\nhub = "o/../n"', "hub must be owner/name"),
        ('id = "m"\npath = "w"\nfile = "f"', "file and revision belong to hub"),
        ('id = "m"\npath = "w"\ncolour = 1', "allowed are id, path, hub"),
        ('id = "m"\npath = "w"\n[engine]\ntp = 2', "engine.tp: allowed are slots, precision"),
        (
            'id = "m"\npath = "w"\n[engine]\nquantization = "fp9"',
            "engine.quantization must be one of bf16, fp16",
        ),
        (
            'id = "m"\npath = "w"\n[engine]\nslots = 0',
            "engine.slots must be a whole number of at least 1",
        ),
        (
            'id = "m"\npath = "w"\n[engine]\nkv_cache_fraction = 1.5',
            "must be a number of more than 0",
        ),
        ('id = "m"\npath = "w"\n[public]\ncreated = 5', "public.created must be a date"),
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


def test_what_is_said_of_the_engine_is_settings(tmp_path):
    """Those that are given, by the names of the worker's settings; the weights' kind is none."""
    text = 'id = "m"\npath = "w"\n[engine]\nslots = 3\nprefix_cache = false\nquantization = "fp8"'
    made = model_file.read(written(tmp_path, text))
    assert made.engine.settings() == {"slots": 3, "prefix_cache": False}
    known = {field.name for field in msgspec.structs.fields(Config)}
    assert known.issuperset(set(model_file.EngineTable.__struct_fields__) - {"quantization"})


def test_what_is_published(tmp_path):
    """What is not said of it follows from where the model is from and what its weights are."""
    text = 'id = "m"\nhub = "o/n"\n[engine]\nquantization = "fp8"\n'
    assert model_file.read(written(tmp_path, text)).facts == PublicFacts(
        hugging_face_id="o/n", quantization="fp8"
    )
    text += '[public]\nname = "M"\nhugging_face_id = "p/q"\nquantization = "int4"\n'
    text += "created = 1970-01-02\n"
    assert model_file.read(written(tmp_path, text)).facts == PublicFacts(
        name="M", hugging_face_id="p/q", quantization="int4", created=129_600
    )


def test_an_argument_names_a_model_file_by_its_ending(tmp_path):
    """NAME=PATH does not, whatever the path ends with, and neither does an id."""
    assert model_file.named_by(str(tmp_path / "a/../m.toml")) == tmp_path / "a/../m.toml"
    assert [model_file.named_by(each) for each in ("name=m.toml", "owner/name", "")] == [None] * 3
