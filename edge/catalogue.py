"""The models there are, as the leading scheduler last told."""

from fastrun.v1.scheduler_pb2 import ModelList, ModelState
from fastrun.v1.worker_pb2 import ModelCard


class Catalogue:
    """Answers what is known of a model without asking anyone."""

    def __init__(self) -> None:
        self._states: dict[str, ModelState] = {}
        self._complete = False

    def replace(self, models: ModelList) -> None:
        """Take a new list in place of the former one."""
        self._states = {state.card.model: state for state in models.models}
        self._complete = models.complete

    def doubt(self) -> None:
        """No scheduler leads: what is not known may be known to the next one."""
        self._complete = False

    def card(self, model: str) -> ModelCard | None:
        """What is known of a model, whether it can serve now or not."""
        state = self._states.get(model)
        return state.card if state else None

    def serving(self) -> list[ModelCard]:
        """The models that can serve a request right now, by name."""
        return [state.card for _, state in sorted(self._states.items()) if state.ready]

    def surely_lacks(self, model: str) -> bool:
        """Whether no worker ever served it; False while a scheduler may yet learn of it."""
        return self._complete and model not in self._states
