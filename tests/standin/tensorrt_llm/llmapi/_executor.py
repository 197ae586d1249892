"""What computes: a thread that makes a step for all requests at once."""

import json
import os
import queue
import threading
import time
from pathlib import Path

from tensorrt_llm._contract import IS_OLD
from tensorrt_llm.executor import CppExecutorError
from tensorrt_llm.executor.result import Logprob
from tensorrt_llm.executor.utils import RequestError
from tensorrt_llm.llmapi._script import Guide, Script
from tensorrt_llm.sampling_params import is_greedy

BLOCK = 32
STEP_S = float(os.environ.get("FASTRUN_STANDIN_STEP_S", "0.001"))
UNHEALTHY_AFTER = int(os.environ.get("FASTRUN_STANDIN_UNHEALTHY", "-1"))


class Running:
    """A request that has been given to the executor."""

    def __init__(self, result, token_ids, params, script, guide, cached):
        self.result, self.params = result, params
        self.script, self.guide = script, guide
        self.prompt, self.cached = len(token_ids), cached
        self.made = 0
        self.aborted = False
        self.pending_end = None  # a stop token that was told and is cut off in the next step

    @property
    def blocks(self):
        return -(-(self.prompt + self.made) // BLOCK)

    @property
    def stops(self):
        if self.params.ignore_eos:
            return []
        ends = [] if self.params.end_id is None else [self.params.end_id]
        return [*ends, *(self.params.stop_token_ids or ())]


class Executor:
    """Steps until it dies."""

    def __init__(self, args, tokenizer_json, tokenizer):
        self._args = args
        self._json, self._tokenizer = tokenizer_json, tokenizer
        config = json.loads((Path(args.model) / "config.json").read_text(encoding="utf-8"))
        self._vocabulary, self._eos_id = config["vocab_size"], config["eos_token_id"]
        self.blocks = 4096
        self.statistics = queue.Queue()
        self.doing_shutdown = False
        self._fatal_error = None
        self._checks = 0
        self.leaked_aborts = 0
        self._cached = {}
        self._running = {}
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._iteration = 0
        self._hangs = False
        threading.Thread(target=self._run, name="standin-executor", daemon=True).start()

    def submit(self, result, token_ids, params, salt):
        """Take a request; some kill the engine, as they have killed the real one."""
        if params.max_tokens < 1:
            self._fatal_error = RuntimeError("max_tokens < 1")
        if len(token_ids) >= self._args.max_seq_len:
            self._hangs = True
        script = Script(token_ids, params, self._tokenizer, is_greedy(params))
        guide = None
        if params.guided_decoding is not None:
            assert self._args.guided_decoding_backend == "llguidance"
            try:
                guide = Guide(
                    self._json, self._vocabulary, self._eos_id, params.guided_decoding.grammar
                )
            except ValueError as error:
                result.put(RequestError(f"Guided decoding error: {error}"))
                return
        cached = self._cached_tokens(token_ids, salt)
        with self._lock:
            self._running[result.request_id] = Running(
                result, token_ids, params, script, guide, cached
            )
            if len(self._running) > self._args.max_batch_size:
                self._hangs = True  # "No free slots"
        self._wake.set()

    def blocks_caller(self, token_ids):
        """Whether the sender of a request waits for ever, with or without the executor's death."""
        text = self._tokenizer.decode(token_ids, skip_special_tokens=False)
        if "[[block]]" in text:
            self._fatal_error = RuntimeError("a script killed the executor")
        return "[[block]]" in text or "[[sink]]" in text

    def abort(self, request_id, *, is_late):
        """Note an abort for the next step; it may cross the end of its request.

        But one whose end has been read already is never forgotten.
        """
        self.leaked_aborts += is_late
        if running := self._running.get(request_id):
            assert not running.aborted, "it is aborted once"
            running.aborted = True

    def check_health(self):
        self._checks += 1
        if 0 <= UNHEALTHY_AFTER < self._checks:
            return False
        return self._fatal_error is None

    def close(self):
        self.doing_shutdown = True
        self._wake.set()

    def _cached_tokens(self, token_ids, salt):
        """Return how many tokens the cache has of a prompt, in whole blocks."""
        known = self._cached.setdefault(salt, set())
        ends = range(BLOCK, len(token_ids), BLOCK)
        prefixes = [tuple(token_ids[:end]) for end in ends]
        cached = 0
        for prefix in prefixes:
            if prefix not in known:
                break
            cached = len(prefix)
        known.update(prefixes)
        return cached

    def _run(self):
        while not self.doing_shutdown:
            if not self._running:
                self._wake.wait(0.2)
                self._wake.clear()
                continue
            time.sleep(STEP_S + self._slowness() / 1000)
            if self._hangs or self._fatal_error is not None:
                continue
            with self._lock:
                running = list(self._running.values())
            self._iteration += 1
            contexts = sum(each.made == 0 for each in running)
            for each in running:
                self._step(each)
            self._tell(len(running), contexts)

    def _slowness(self):
        return max((each.script.number("slow") or 0 for each in self._running.values()), default=0)

    def _step(self, running):
        script, at = running.script, len(running.script.said)
        if running.aborted:
            if "deaf" not in script.commands:
                self._end(running, finish="cancelled")
            return
        if running.pending_end is not None:
            self._end(running, finish="stop", stop=running.pending_end, cut=1)
            return
        if self._obeys(running, at):
            return
        try:
            self._make(running)
        except ValueError as error:
            self._forget(running)
            running.result.put(RequestError(f"Guided decoding error: {error}"))

    def _obeys(self, running, at):
        """Do what a command says about this token; True if the step is over with that."""
        number = running.script.number
        if running.script.continues:
            return False  # what it died of elsewhere is over
        if number("fail") == at:
            self._forget(running)
            running.result.put(RequestError("a script failed this request"))
        elif number("timeout") == at:
            self._end(running, finish="timeout")
        elif number("crash") == at:
            for each in list(self._running.values()):
                each.result.put(CppExecutorError("a script crashed the executor"))
            self._running.clear()
        elif number("die") == at:
            self._fatal_error = RuntimeError("a script killed the executor")
        elif number("hang") == at:
            self._hangs = True
        else:
            return False
        return True

    def _make(self, running):
        params, script = running.params, running.script
        stops = running.stops
        token = script.next(stops[0] if stops else None)
        if running.guide is not None:
            token = running.guide.choose(token)
        script.said.append(token)
        running.made += 1
        finish, stop, cut = None, None, 0
        room = self._args.max_seq_len - running.prompt
        if token in stops:
            finish = "stop"
            stop = None if token == params.end_id else token
            if "cut" in script.commands:
                running.pending_end, finish = stop if stop is not None else token, None
            elif not params.include_stop_str_in_output:
                cut = 1
        elif running.made >= min(params.max_tokens, room):
            finish = "length"
        logprobs = self._logprobs(running, token)
        if finish:
            self._end(running, tokens=[token], logprobs=logprobs, finish=finish, stop=stop, cut=cut)
        else:
            self._put(running, tokens=[token], logprobs=logprobs)

    def _logprobs(self, running, token):
        count = running.params.logprobs
        if count is None or (IS_OLD and count == 0):
            return []
        if "flat" in running.script.commands:
            return [-0.25]
        entry = {
            (token + rank) % self._vocabulary: Logprob(-0.25 - rank, rank + 1)
            for rank in range(count)
        }
        entry.setdefault(token, Logprob(-0.25, 1))
        if running.script.number("gap") == running.made - 1:
            del entry[token]
            entry[(token + count + 1) % self._vocabulary] = Logprob(float("-inf"), 0)
        return [entry]

    def _put(self, running, *, tokens=(), logprobs=(), finish=None, stop=None, cut=0):
        running.result.put(
            {
                "token_ids": list(tokens),
                "logprobs": list(logprobs),
                "finish": finish,
                "stop": stop,
                "cut": cut,
                "cached": running.cached,
            }
        )

    def _end(self, running, **step):
        self._forget(running)
        self._put(running, **step)

    def _forget(self, running):
        with self._lock:
            self._running.pop(running.result.request_id, None)

    def _tell(self, active, contexts):
        if not self._args.enable_iter_perf_stats:
            return
        self.statistics.put(
            {
                "iter": self._iteration,
                "numActiveRequests": active,
                "numQueuedRequests": 0,
                "kvCacheStats": {
                    "maxNumBlocks": self.blocks,
                    "usedNumBlocks": sum(each.blocks for each in list(self._running.values())),
                    "tokensPerBlock": BLOCK,
                },
                "inflightBatchingStats": {"numContextRequests": contexts},
            }
        )
