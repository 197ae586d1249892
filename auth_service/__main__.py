"""Starts the auth service: `python -m auth_service`."""

import asyncio
import os
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from random import SystemRandom

import structlog

from auth_service import migrate, pepper_record
from auth_service.account_store import AccountStore
from auth_service.admin_servicer import AdminServicer
from auth_service.audit import Audit
from auth_service.config import Config
from auth_service.database import Database
from auth_service.enrolment_servicer import Enrolment, EnrolmentServicer, Terms
from auth_service.enrolment_store import EnrolmentStore
from auth_service.errors import (
    PepperError,
    RetiredPepperError,
    SchemaError,
    StoreUnavailableError,
)
from auth_service.key_feed import KeyFeed
from auth_service.key_lookup import KeyLookup
from auth_service.key_store import KeyStore
from auth_service.keys import Peppers
from auth_service.metrics import Metrics
from auth_service.prices import Prices
from auth_service.servicer import AuthServicer
from auth_service.usage_store import UsageStore
from fastrun.service import config, identity, lifecycle, logs, tracing
from fastrun.service.config import host_and_port
from fastrun.service.metrics import AdminServer
from fastrun.service.rpc import RpcServer
from fastrun.service.streams import backoff_s
from fastrun.service.tls import Tls
from fastrun.v1 import admin_pb2, admin_pb2_grpc, auth_pb2, auth_pb2_grpc

log = structlog.get_logger()


class AuthService:
    """The wiring: one pool, one listener, two servicers, one admin port; another to join at."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._metrics = Metrics()
        self._tracer = tracing.tracer(config.otlp_endpoint, "auth", disabled=config.otlp_disabled)
        self._server = RpcServer(Tls.of(config), tracer=self._tracer)
        self._admin = AdminServer(
            self._metrics.registry, alive=lambda: None, ready=lambda: self._not_ready
        )
        self._not_ready: str | None = "starting"
        self._database: Database | None = None
        self._feed: KeyFeed | None = None
        tls, terms = Tls.of(config), _terms(config)
        self._joining = RpcServer(tls, strangers=True) if terms else None
        self._terms = terms

    async def start(self) -> Mapping[str, int]:
        """Wait for Postgres and serve."""
        admin_port = self._admin.start(*host_and_port(self._config.admin_listen))
        if self._terms is not None:
            await self._terms.check()
        url = self._config.database_url
        peppers = Peppers.of(self._config.peppers)
        database = await self._await_database(url, peppers)
        feed = self._feed = KeyFeed(url, database)
        enrolment = self._serve(database, feed, peppers)
        feed.start()
        ports = {"grpc": await self._server.start(self._config.listen), "admin": admin_port}
        if self._joining is not None and enrolment is not None:
            ports["enrol"] = enrolment.port = await self._joining.start(self._config.enrol_listen)
        self._not_ready = None
        return ports

    def _serve(self, database: Database, feed: KeyFeed, peppers: Peppers) -> Enrolment | None:
        random, audit = SystemRandom(), Audit(database)
        usage = UsageStore(database)
        enrolment = self._enrolment(database, audit)
        lookup = KeyLookup(database, peppers, deadline_s=self._config.verify_timeout_s)
        self._server.add(
            auth_pb2.DESCRIPTOR.services_by_name["AuthService"],
            auth_pb2_grpc.add_AuthServiceServicer_to_server,
            AuthServicer(lookup, feed, usage, self._metrics, enrolment=enrolment),
        )
        self._server.add(
            admin_pb2.DESCRIPTOR.services_by_name["AdminService"],
            admin_pb2_grpc.add_AdminServiceServicer_to_server,
            AdminServicer(
                AccountStore(database, audit, random, identity.actor),
                KeyStore(database, audit, peppers, random, identity.actor),
                audit,
                usage,
                Prices(database, audit, identity.actor),
                enrolment=enrolment,
            ),
        )
        return enrolment

    def _enrolment(self, database: Database, audit: Audit) -> Enrolment | None:
        if self._terms is None or self._joining is None:
            return None
        enrolment = Enrolment(EnrolmentStore(database, audit, identity.actor), self._terms)
        self._joining.add(
            auth_pb2.DESCRIPTOR.services_by_name["EnrolmentService"],
            auth_pb2_grpc.add_EnrolmentServiceServicer_to_server,
            EnrolmentServicer(enrolment),
        )
        return enrolment

    async def drain(self) -> None:
        """Finish the calls that run, and send watching edges elsewhere."""
        self._not_ready = "stopping"
        await self._server.not_serving()
        if self._feed is not None:
            await self._feed.close()
        if self._joining is not None:
            await self._joining.stop(0)
        await self._server.stop(self._config.grace_s)

    async def stop(self) -> None:
        """Close everything."""
        if self._joining is not None:
            await self._joining.stop(0)
        await self._server.stop(0)
        if self._feed is not None:
            await self._feed.close()
        if self._database is not None:
            await self._database.close()
        await self._tracer.close()
        self._admin.close()

    async def _await_database(self, url: str, peppers: Peppers) -> Database:
        """Return when Postgres answers with our schema and keys; it may come up after us."""
        attempt, database = 0, self._database
        while True:
            try:
                await migrate.check(url)
                if database is None:
                    size = self._config.pool_size
                    database = self._database = await Database.open(url, pool_size=size)
                await pepper_record.check(database, peppers)
                return database
            except (SchemaError, PepperError, RetiredPepperError) as error:
                raise lifecycle.StartError(str(error)) from error
            except StoreUnavailableError as error:
                attempt += 1
                self._not_ready = str(error)
                log.warning("postgres_awaited", reason=str(error), attempt=attempt)
                await asyncio.sleep(backoff_s(attempt))


def _terms(config: Config) -> Terms | None:
    """What machines that join are given; None: none can join."""
    if not config.enrol_listen:
        return None
    return Terms(
        ca_key=Path(config.enrol_ca_key),
        ca=Path(config.tls_ca),
        lifetime=timedelta(days=config.enrol_certificate_days),
        schedulers=tuple(config.enrol_scheduler_addresses),
        auth=config.enrol_auth_address,
    )


def main() -> None:
    """Read the settings and serve until a signal."""
    settings = config.load_or_exit(Config, "auth", os.environ)
    logs.configure("auth", level=settings.log_level)
    lifecycle.run(lambda: AuthService(settings), grace_s=settings.grace_s)


if __name__ == "__main__":
    main()
