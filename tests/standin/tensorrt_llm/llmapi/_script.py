"""What a request will say: commands in its prompt, else words that depend on all before them."""

import re
from hashlib import blake2b

import llguidance
import numpy as np

COMMAND = re.compile(r"\[\[(\w+)(?:=(.*?))?\]\]", re.DOTALL)
WORDS = " harbour morning lantern village thunder whisper journey kitchen between nothing"
# What a guided output chooses where it does not say what its script would: it comes to an end.
PREFERRED = ("}", "]", '"', ":", ",", "t", "f", "n", *"0123456789", "{", "[")


class Script:
    """The tokens of one request, one by one."""

    def __init__(self, prompt, params, tokenizer, greedy):
        # Of a continuation, what was said before stands behind the prompt proper.
        own = getattr(params, "prompt_ignore_length", None) or len(prompt)
        self.said = list(prompt[own:])
        self.continues = bool(self.said)
        self._prompt = bytes(str(prompt[:own]), "ascii")
        self._seed = 0 if greedy else params.seed or 0
        text = tokenizer.decode(prompt[:own], skip_special_tokens=False)
        self.commands = dict(COMMAND.findall(text))
        self._words = tokenizer.encode(WORDS, add_special_tokens=False).ids
        self._text = None
        if "text" in self.commands:
            self._text = tokenizer.encode(self.commands["text"], add_special_tokens=False).ids
        self._end = len(self._text) if self._text is not None else self.number("tokens")

    def number(self, name):
        """Return the number of a command; None without it."""
        value = self.commands.get(name)
        return int(value) if value else None

    def next(self, end_id):
        """Return the token that the model wants next."""
        position = len(self.said)
        if self._end is not None and position >= self._end and end_id is not None:
            return end_id
        if self._text is not None and position < len(self._text):
            return self._text[position]
        message = b"%d %s" % (self._seed, bytes(str(self.said[-8:]), "ascii"))
        digest = blake2b(message + b"%d" % position, key=blake2b(self._prompt).digest())
        return self._words[int.from_bytes(digest.digest()[:4], "little") % len(self._words)]


class Guide:
    """Holds a script to a grammar, as the library does with llguidance."""

    def __init__(self, tokenizer_json, vocabulary, eos_id, lark):
        self._tokenizer = llguidance.LLTokenizer(
            tokenizer_json, n_vocab=vocabulary, eos_token=eos_id
        )
        grammar = llguidance.LLMatcher.grammar_from_lark(lark)
        self._matcher = llguidance.LLMatcher(self._tokenizer, grammar, log_level=0)
        self._vocabulary, self._eos_id = vocabulary, eos_id
        self._check()

    def choose(self, wanted):
        """Return the wanted token if it may follow, else one that leads to an end."""
        mask = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
        self._check()
        allowed = np.flatnonzero(np.unpackbits(mask, bitorder="little")[: self._vocabulary])
        chosen = self._preferred(wanted, {int(token) for token in allowed})
        assert self._matcher.consume_token(chosen)
        return chosen

    def _preferred(self, wanted, allowed):
        if wanted in allowed:
            return wanted
        if self._eos_id in allowed:
            return self._eos_id
        for text in PREFERRED:
            ids = self._tokenizer.tokenize_str(text)
            if len(ids) == 1 and ids[0] in allowed:
                return ids[0]
        return min(allowed)

    def _check(self):
        if self._matcher.is_error():
            raise ValueError(f"LLGuidance matcher error: {self._matcher.get_error()}")
