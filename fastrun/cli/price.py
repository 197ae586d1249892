"""`fastrun price`: what a million tokens of a model cost, in whatever currency is meant."""

from collections.abc import Iterable
from typing import Annotated, Any

import typer

from fastrun.cli.connection import TIMEOUT_S, Auth, ContextName, ask, auth_service
from fastrun.cli.data import Data
from fastrun.cli.group import group
from fastrun.cli.money import micros, money
from fastrun.cli.output import Json, moment, print_columns, print_json
from fastrun.v1 import admin_pb2, admin_pb2_grpc

app = group(
    "price",
    help="Set and list what models cost.",
    epilog="Example: fastrun price list",
)


@app.command("set", epilog="Example: fastrun price set tiny --prompt 0.15 --completion 0.60")
def set_(
    model: Annotated[str, typer.Argument(help="The name that clients ask for.")],
    prompt: Annotated[str, typer.Option(metavar="PRICE", help="Of a million prompt tokens.")],
    completion: Annotated[
        str, typer.Option(metavar="PRICE", help="Of a million tokens of answers.")
    ],
    cached: Annotated[
        str | None,
        typer.Option(
            metavar="PRICE",
            help="Of a million prompt tokens that came from the prefix cache.  [as --prompt]",
        ),
    ] = None,
    auth: Auth = None,
    data: Data = None,
    context: ContextName = None,
    as_json: Json = False,
) -> None:
    """Say what a model costs from now on. What was used before keeps its price."""
    price = admin_pb2.Price(
        model=model,
        prompt_micros=micros(prompt, "--prompt"),
        cached_micros=micros(prompt if cached is None else cached, "--cached"),
        completion_micros=micros(completion, "--completion"),
    )
    answer = ask(
        auth_service(auth, data, context),
        lambda channel: admin_pb2_grpc.AdminServiceStub(channel).SetPrice(
            admin_pb2.SetPriceRequest(price=price), timeout=TIMEOUT_S
        ),
    )
    if as_json:
        print_json(_fields(answer.price))
    else:
        _show([answer.price])


@app.command("list", epilog="Example: fastrun price list")
def list_(
    auth: Auth = None, data: Data = None, context: ContextName = None, as_json: Json = False
) -> None:
    """List the price of every model that has one."""
    answer = ask(
        auth_service(auth, data, context),
        lambda channel: admin_pb2_grpc.AdminServiceStub(channel).ListPrices(
            admin_pb2.ListPricesRequest(), timeout=TIMEOUT_S
        ),
    )
    if as_json:
        print_json([_fields(price) for price in answer.prices])
    else:
        _show(answer.prices)


def _show(prices: Iterable[admin_pb2.Price]) -> None:
    amounts = ("prompt", "cached", "completion")
    print_columns(
        ("model", *amounts, "since"),
        [
            (
                price.model,
                money(price.prompt_micros),
                money(price.cached_micros),
                money(price.completion_micros),
                moment(price.valid_from),
            )
            for price in prices
        ],
        right=amounts,
    )


def _fields(price: admin_pb2.Price) -> dict[str, Any]:
    """A price as JSON: millionths of the currency's unit for a million tokens."""
    return {
        "model": price.model,
        "prompt_micros": price.prompt_micros,
        "cached_micros": price.cached_micros,
        "completion_micros": price.completion_micros,
        "valid_from": moment(price.valid_from),
    }
