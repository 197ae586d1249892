"""Every metric of a small stack, and what makes it move."""

import importlib.util
from contextlib import AsyncExitStack
from pathlib import Path
from random import SystemRandom

import pytest
from small_stack import Stack

from fastrun.service import api_key

PAGE = Path(__file__).parents[2] / "docs/operating/metrics.py"


@pytest.fixture(scope="module")
def names():
    """The names of all metrics, as the page of them has them."""
    spec = importlib.util.spec_from_file_location("metrics_page", PAGE)
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    return {metric.name for metrics in script.tables().values() for metric in metrics}


async def test_every_metric_moves_by_what_makes_it_move(database, tmp_path, names):
    """Each step of a stack's life changes the metrics that tell of it, and none tells of nothing."""
    stack = Stack(database, tmp_path / "spool")
    async with AsyncExitStack() as exits:
        async with stack.moves(
            "fastrun_build_info",
            "fastrun_edge_spool_limit_bytes",
            "fastrun_edge_key_watch_current",
            "fastrun_auth_watches",
            "fastrun_scheduler_term",
            "fastrun_scheduler_leads",
            "fastrun_scheduler_edges",
            "fastrun_scheduler_workers",
            "fastrun_scheduler_slots",
            "fastrun_worker_slots",
            "fastrun_worker_kv_blocks",
            "fastrun_worker_model_info",
            "fastrun_worker_engine_healthy",
        ):
            await stack.start(exits)
        await _ask(stack)
        await _fill(stack)
        await _fail(stack)
        await _end(stack)
    assert stack.moved == names


async def _ask(stack):
    async with stack.moves(
        "fastrun_edge_key_lookups_total",
        "fastrun_auth_verified_total",
        "fastrun_auth_verify_seconds",
    ):
        key = api_key.generate(SystemRandom())
        answer = await stack.client.get("/v1/models", headers={"authorization": f"Bearer {key}"})
        assert answer.status_code == 401
    async with stack.moves(
        "fastrun_edge_requests_total",
        "fastrun_edge_request_seconds",
        "fastrun_edge_first_delta_seconds",
        "fastrun_edge_queue_seconds",
        "fastrun_edge_tokens_total",
        "fastrun_edge_usage_records_total",
        "fastrun_edge_usage_deliveries_total",
        "fastrun_auth_record_usage_seconds",
        "fastrun_auth_usage_records_total",
        "fastrun_scheduler_decision_seconds",
        "fastrun_scheduler_wait_seconds",
        "fastrun_scheduler_grants_total",
        "fastrun_scheduler_prompt_tokens_total",
        "fastrun_scheduler_cached_tokens_total",
        "fastrun_worker_requests_total",
        "fastrun_worker_tokens_total",
        "fastrun_worker_first_token_seconds",
        "fastrun_worker_inter_token_seconds",
        "fastrun_worker_request_seconds",
    ):
        answer = await stack.ask("say [[tokens=5]]")
        assert answer.status_code == 200, answer.text


async def _fill(stack):
    """Four slots of workers whose engines run one request each, and room for one to wait."""
    before = await stack.read()
    async with stack.streaming(5):
        await stack.moved_since(
            before,
            "fastrun_edge_requests_running",
            "fastrun_edge_spool_bytes",
            "fastrun_scheduler_slots_in_use",
            "fastrun_scheduler_queue_waiting",
            "fastrun_worker_slots_in_use",
            "fastrun_worker_engine_running",
            "fastrun_worker_engine_waiting",
            "fastrun_worker_engine_prefill_tokens",
            "fastrun_worker_engine_context_tokens",
            "fastrun_worker_kv_blocks_used",
        )
        async with stack.moves("fastrun_scheduler_rejections_total"):
            assert (await stack.ask("one too many")).status_code == 429


async def _fail(stack):
    async with stack.moves("fastrun_edge_retries_total", "fastrun_scheduler_breakers_opened_total"):
        assert (await stack.ask("[[fail=0]]")).status_code == 502
    async with stack.moves("fastrun_worker_engine_preemptions"):
        stack.engines["w1"].preemptions += 1
    before = await stack.read()
    async with stack.grant_that_nobody_starts():
        await stack.moved_since(before, "fastrun_scheduler_drift")


async def _end(stack):
    async with stack.moves("fastrun_edge_spool_corrupt_lines_total"):
        stack.leave_spoiled_spool()
    before = await stack.read()
    async with stack.streaming(1):
        await stack.moved_since(before, "fastrun_worker_slots_in_use")
        async with stack.moves("fastrun_edge_resumes_total"):
            await stack.drain_busy()
    before = await stack.read()
    async with stack.streaming(1, "[[die=0]]"):
        await stack.moved_since(before, "fastrun_worker_engine_healthy")
