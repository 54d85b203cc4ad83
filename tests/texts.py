"""Generated texts over all of Unicode, with more of what tokenizers stumble over: white space of every kind and length."""

from __future__ import annotations

import random
from typing import Final

ADDED: Final = ("<|endoftext|>", "[SEP]", "<mask>", "zebra", "  ", "\n\n")
WHITE: Final = "\t\n\x0b\x0c\r\x1c\x1d\x1e\x1f\x85\xa0\u1680\u2000\u2003\u200a\u2028\u2029\u202f\u205f\u3000"
_ODD: Final = (
    "\x00\x01\x7f\xad\u0130\u0131\u0149\u017f\u0301\u0308\u0345\u03a3\u0600\u0e33\u0f0b\u115f\u1160\u17b4\u180e\u1e9e\u200b\u200c"
    "\u200d\u200e\u202a\u2060\u20dd\u2581\u3164\ufb01\ufdfa\ufe0f\ufeff\uff21\uff9e\ufffc\ufffd\U000110bd\U0001d15e\U00016ff4"
    "\U0001f468\U0001f3fd\U000e0001\U000e0041\u0120\u0100\u010a\xa8\xb4\u2017\u203e\u037a"
)
_WORDS: Final = (
    "the",
    "The",
    " don't",
    "we'LL",
    "x's",
    "ab12",
    "3.14",
    "1234567",
    "naïve",
    "Straße",
    "ΣΑΣ",
    "日本",
    "ไทย",
    "العربية",
)
_PLANES: Final = (
    (0x21, 0x7E), (0xA1, 0x24F), (0x250, 0x1FFF), (0x2000, 0xD7FF), (0xE000, 0xFFFF), (0x10000, 0x1FFFF), (0x20000, 0x10FFFF),
)  # fmt: skip


def texts(count: int, seed: int, most: int = 10) -> list[str]:
    """`count` texts of up to `most` parts: characters of every plane, words, white space, added tokens."""
    draw = random.Random(seed)
    return ["".join(_part(draw) for _ in range(draw.randrange(most + 1))) for _ in range(count)]


def _part(draw: random.Random) -> str:
    kind = draw.random()
    if kind < 0.28:
        return " "
    if kind < 0.36:
        return " " * draw.randrange(2, 5)
    if kind < 0.46:
        return draw.choice(WHITE)
    if kind < 0.58:
        return draw.choice(_ODD)
    if kind < 0.70:
        return draw.choice(_WORDS)
    if kind < 0.75:
        return draw.choice(ADDED)
    if kind < 0.85:
        return chr(draw.randrange(0x21, 0x7F))
    return chr(draw.randint(*draw.choice(_PLANES)))
