"""The edge put together: what it is made of, and how it starts, drains and stops."""

import asyncio
import random
import secrets
import time
from collections.abc import Mapping
from contextvars import Context
from pathlib import Path

from aiohttp import web

from edge.auth_cache import AuthCache, Sizes
from edge.auth_cache import Times as KeyTimes
from edge.authentication import Authenticator, AuthLink
from edge.chat import ChatCompletions
from edge.completions import Completions
from edge.config import Config
from edge.cors import Cors
from edge.exchange import Exchange
from edge.front_page import front_page
from edge.generation import Generations
from edge.generation import Times as GenerationTimes
from edge.http_server import ConnectionLimits, HttpServer
from edge.key_watch import CONFIRMED_S, KeyWatch
from edge.large_bodies import LargeBodies
from edge.metering import Metering
from edge.metrics import Metrics
from edge.middleware import Middleware
from edge.models import Models
from edge.reference import Reference
from edge.routes import Endpoint, Route, Routes
from edge.running import Running
from edge.scheduler_link import SchedulerLink
from edge.serving import Serving
from edge.usage import Usage
from edge.usage_delivery import UsageDelivery
from edge.usage_link import UsageLink
from edge.usage_spool import Spool
from edge.worker_link import Workers
from fastrun.service import tracing
from fastrun.service.config import host_and_port
from fastrun.service.lifecycle import ListenError, StartError
from fastrun.service.metrics import AdminServer
from fastrun.service.tls import Tls

BACKLOG = 1024
LOOKS = 5
BETWEEN_LOOKS_S = 0.01
CUT_OFF_S = 0.2


class Edge:
    """One edge process."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._metrics = Metrics(spool_limit_bytes=config.spool_limit_bytes)
        self._tracer = tracing.tracer(
            config.otlp_endpoint,
            "edge",
            disabled=config.otlp_disabled,
            share=config.trace_share,
        )
        tls = Tls.of(config)
        edge_id = secrets.token_hex(8)
        self._auth = AuthLink(config.auth_address, tls)
        self._keys = _keys(config, self._auth, self._metrics)
        self._key_watch = KeyWatch(config.auth_address, tls, self._keys)
        self._scheduler = SchedulerLink(
            config.scheduler_addresses,
            edge_id=edge_id,
            scheduler_timeout_s=config.scheduler_timeout_s,
            on_models=self._metrics.keep,
            tls=tls,
        )
        self._workers = Workers(
            self._scheduler,
            connect_timeout_s=config.connect_timeout_s,
            abort_timeout_s=config.abort_timeout_s,
            large_request_bytes=config.large_request_bytes,
            tls=tls,
        )
        self._spool = Spool(_folder(config), edge_id, limit_bytes=config.spool_limit_bytes)
        self._metering = Metering(self._spool, on_end=self._metrics.metered)
        self._usage = UsageLink(
            config.auth_address,
            config.scheduler_addresses,
            timeout_s=config.usage_timeout_s,
            tls=tls,
        )
        self._delivery = UsageDelivery(
            self._spool, self._usage, self._metrics, interval_s=config.usage_interval_s
        )
        self._middleware = Middleware(
            self._routes(), self._metrics, Cors(config.cors_origins), self._tracer
        )
        self._runner = web.ServerRunner(
            HttpServer(self._middleware, _connection_limits(config)), shutdown_timeout=CUT_OFF_S
        )
        self._site: web.TCPSite | None = None
        self._admin = AdminServer(
            self._metrics.registry, alive=lambda: None, ready=self._why_not_ready
        )
        self._watching: asyncio.Task[None] | None = None

    async def start(self) -> Mapping[str, int]:
        """Listen, and connect to everything else in the background.

        Returns:
            The ports, by name.

        Raises:
            OSError: a port is in use.
        """
        self._scheduler.start()
        self._watching = asyncio.create_task(
            self._key_watch.keep(), name="key-watch", context=Context()
        )
        self._delivery.start()
        await self._runner.setup()
        host, port = host_and_port(self._config.listen)
        self._site = web.TCPSite(
            self._runner, host, port, backlog=BACKLOG, reuse_port=self._config.reuse_port or None
        )
        # Clients last: what else cannot start then costs none of them an answer.
        admin_port = self._admin.start(*host_and_port(self._config.admin_listen))
        try:
            await self._site.start()
        except OSError as error:
            raise ListenError(self._config.listen) from error
        return {"http": self._site.port, "admin": admin_port}

    async def drain(self) -> None:
        """Take no new connections, close each after its answer, return when none is owed."""
        self._middleware.is_draining = True
        # What has connected already would be reset, and what was just accepted be cut off unread.
        await _look_around()
        if self._site is not None:
            await self._site.stop()
        await _look_around()
        await self._middleware.idle()
        await self._metering.idle()

    async def stop(self) -> None:
        """Close everything; requests that still run are cut off."""
        await self._runner.cleanup()
        await self._workers.close()
        await self._delivery.stop()
        await self._usage.close()
        await self._scheduler.stop()
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.gather(self._watching, return_exceptions=True)
        await self._auth.close()
        await self._tracer.close()
        self._admin.close()

    def _routes(self) -> Routes:
        config = self._config
        authenticator = Authenticator(self._keys)
        serving = Serving(
            config,
            bodies=LargeBodies(config.bodies_limit_bytes),
            catalogue=self._scheduler.catalogue,
            generations=Generations(
                self._scheduler,
                self._workers,
                _generation_times(config),
                self._metrics,
                self._tracer,
            ),
            metering=self._metering,
            metrics=self._metrics,
            running=Running(self._keys, abort=config.revoked_streams == "abort"),
            seeds=random.Random(),  # noqa: S311 - seeds of answers hide nothing
        )
        reference = Reference()
        models = Models(authenticator, self._scheduler)
        return Routes(
            {
                "/v1/chat/completions": Route(
                    "chat", {"POST": ChatCompletions(authenticator, serving)}
                ),
                "/v1/completions": Route(
                    "completions", {"POST": Completions(authenticator, serving)}
                ),
                "/v1/models": Route("models", _page(models.every)),
                "/v1/models/": Route("model", _page(models.one)),
                "/v1/usage": Route("usage", _page(Usage(authenticator, self._usage))),
                "/openapi.json": Route("openapi", _page(reference.json)),
                "/openapi.yaml": Route("openapi", _page(reference.yaml)),
                "/docs": Route("docs", _page(reference.page)),
                "/": Route("front", _page(self._front)),
                "/healthz": Route("health", _page(self._health)),
                "/readyz": Route("ready", _page(self._ready)),
            }
        )

    async def _front(self, exchange: Exchange) -> web.StreamResponse:
        return exchange.html(front_page(self._scheduler.catalogue.serving()))

    async def _health(self, exchange: Exchange) -> web.StreamResponse:
        return exchange.text("ok")

    async def _ready(self, exchange: Exchange) -> web.StreamResponse:
        problem = self._why_not_ready()
        return exchange.text(problem, status=503) if problem else exchange.text("ok")

    def _why_not_ready(self) -> str | None:
        if self._middleware.is_draining:
            return "the edge is shutting down"
        if not self._scheduler.connected:
            addresses = ", ".join(self._config.scheduler_addresses)
            return f"no scheduler is connected, tried {addresses}"
        if self._keys.is_useless:
            return f"the auth service at {self._config.auth_address} cannot say which keys are good"
        return self._spool.problem


async def _look_around() -> None:
    """Take what has come; several times, since one that was frozen wakes up when time is over."""
    for _ in range(LOOKS):
        await asyncio.sleep(BETWEEN_LOOKS_S)


def _page(endpoint: Endpoint) -> dict[str, Endpoint]:
    return {"GET": endpoint, "HEAD": endpoint}


def _keys(config: Config, auth: AuthLink, metrics: Metrics) -> AuthCache:
    cache = AuthCache(
        auth.verify,
        KeyTimes(
            fresh_s=config.key_fresh_s,
            grace_s=config.key_grace_s,
            unknown_s=config.unknown_key_s,
            retry_s=config.auth_retry_s,
            question_s=config.verify_timeout_s,
            confirmed_s=CONFIRMED_S,
        ),
        Sizes(known=config.key_cache_size, unknown=config.unknown_key_cache_size),
        clock=time.monotonic,
        count=metrics.looked_up,
    )
    metrics.watches(lambda: cache.is_current)
    return cache


def _folder(config: Config) -> Path:
    try:
        return Path(config.spool).expanduser()
    except RuntimeError:
        raise StartError("there is no home folder: set FASTRUN_EDGE_SPOOL to a folder") from None


def _connection_limits(config: Config) -> ConnectionLimits:
    return ConnectionLimits(
        header_bytes=config.header_limit_bytes,
        header_timeout_s=config.header_timeout_s,
        idle_timeout_s=config.idle_timeout_s,
        unsent_bytes=config.unsent_limit_bytes,
        stall_timeout_s=config.stall_timeout_s,
    )


def _generation_times(config: Config) -> GenerationTimes:
    return GenerationTimes(
        queue_s=config.queue_timeout_s,
        first_delta_s=config.first_delta_timeout_s,
        silence_s=config.silence_timeout_s,
        resume_s=config.resume_timeout_s,
        whole_s=config.request_timeout_s,
        early_headers_s=config.early_headers_s,
    )
