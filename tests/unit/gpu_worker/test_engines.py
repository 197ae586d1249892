"""Engine and model as the settings say."""

from functools import partial
from unittest import mock

import pytest

from gpu_worker import engines
from gpu_worker.config import Config
from gpu_worker.engine.protocol import UnsupportedError
from gpu_worker.engine.scripted import TURN_END, TURN_START, ByteTokenizer, ScriptedEngine
from gpu_worker.engines import Phases
from gpu_worker.model_file import ModelFileError


async def test_the_scripted_engine_follows_the_settings():
    """Name, window and slots come from the settings."""
    config = Config(engine="scripted", model="pretend=anything", slots=3, scripted_context=512)
    engine, model = await engines.load(config)
    assert (engine.name, engine.slots, engine.context_length) == ("scripted", 3, 512)
    assert (model.card.model, model.card.context_length) == ("pretend", 512)
    await engine.close()


def test_markers_that_a_vocabulary_hides_are_seen():
    """Control tokens stand for nothing, unless a parser looks for them."""
    shown = engines.with_markers(ByteTokenizer(), ["<|im_end|>", "<think>"])
    assert shown(TURN_END) == b"<|im_end|>"
    assert shown(TURN_START) == b""
    assert shown(97) == b"a"


def test_stop_tokens_that_a_vocabulary_lacks_are_refused():
    """A slip in a model file is named: the model would never end its turn."""
    engines.known(["<|im_end|>"], ByteTokenizer())
    with pytest.raises(ModelFileError, match="no special token '<im_end>'"):
        engines.known(["<|im_end|>", "<im_end>"], ByteTokenizer())


def test_a_default_of_the_model_is_left_out_where_its_engine_refuses_it():
    """Else each request would be refused for what its client has not asked for."""

    class Old(ScriptedEngine):
        def check(self, sampling):
            if sampling.repetition_penalty != 1:
                raise UnsupportedError("not supported")

    assert engines._penalty(1.1, ScriptedEngine()) == 1.1
    assert engines._penalty(1.1, Old()) == 1.0


def test_progress_is_logged_once_for_each_step():
    """A phase that reports often says so in quarters."""
    with mock.patch.object(engines, "log") as log:
        phases = Phases()
        for done in range(101):
            phases("checking", done / 100)
        phases("converting", None)
        phases("converting", None)
    said = [call.kwargs for call in log.info.call_args_list]
    checking = partial(dict, phase="checking")
    assert said == [
        *[checking(percent=percent) for percent in (0, 25, 50, 75, 100)],
        {"phase": "converting", "percent": None},
    ]
