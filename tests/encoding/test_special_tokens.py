from __future__ import annotations

import json
from typing import Any

import pytest
from tokenizers import processors

from brimful.encoding.encoders import encoder_for
from brimful.encoding.special_tokens import SpecialTokens, special_tokens_of
from tests import tokenizers as make
from tests.encoding.test_encoders import rows_of
from tests.texts import texts

TEXTS = ["", "a", *texts(300, seed=4)]
ENDS = [("[CLS]", 2), ("[SEP]", 3), ("<s>", 5)]
ROBERTA = processors.RobertaProcessing(("</s>", 6), ("<s>", 5))
POST = [
    None,
    processors.ByteLevel(trim_offsets=True),
    processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2)),
    ROBERTA,
    processors.TemplateProcessing(single="[CLS] <s> $A [SEP]", special_tokens=ENDS),
    processors.TemplateProcessing(single="$A:1 [SEP]:1 [SEP]", special_tokens=ENDS),
    processors.Sequence([processors.ByteLevel(), processors.TemplateProcessing(single="<s> $A", special_tokens=ENDS)]),
]


@pytest.mark.parametrize("post", POST, ids=range(len(POST)))
@pytest.mark.parametrize("special", [True, False])
def test_special_tokens_and_truncation_of_columns_are_the_tokenizers_own(post: Any, special: bool) -> None:
    for most, side in ((None, "right"), (9, "right"), (5, "left"), (4, "right")):
        tokenizer = make.bpe()
        if post is not None:
            tokenizer.post_processor = post
        if most is not None:
            tokenizer.enable_truncation(most, direction=side)
        expected = [one.ids for one in tokenizer.encode_batch(TEXTS, add_special_tokens=special)]
        encoder = encoder_for(tokenizer, {"add_special_tokens": special}, engine="cache")
        assert rows_of(make.of_column(encoder, make.column(TEXTS))) == expected


def test_what_is_not_known_is_left_to_the_tokenizer() -> None:
    twice = processors.Sequence([ROBERTA, processors.TemplateProcessing(single="<s> $A", special_tokens=ENDS)])
    doubled = processors.TemplateProcessing(single="$A $A", special_tokens=[])
    for post, bare in ((twice, "cache"), (doubled, "tokenizer")):
        tokenizer = make.bpe()
        tokenizer.post_processor = post
        assert "its post-processor" in str(special_tokens_of(json.loads(tokenizer.to_str())["post_processor"], None))
        assert encoder_for(tokenizer).by_name == "tokenizer"
        without = encoder_for(tokenizer, {"add_special_tokens": False}, engine=bare if bare == "cache" else "auto")
        assert without.by_name == bare
        expected = [one.ids for one in tokenizer.encode_batch(TEXTS, add_special_tokens=False)]
        assert rows_of(make.of_column(without, make.column(TEXTS))) == expected
    assert "its truncation" in str(
        special_tokens_of(None, {"max_length": 5, "direction": "right", "strategy": "only_second"})
    )
    around = json.loads(ROBERTA.__getstate__())
    assert "its truncation" in str(special_tokens_of(around, {"max_length": 2, "direction": "right"}))
    assert special_tokens_of(around, {"max_length": 3, "direction": "Left"}) == SpecialTokens((5,), (6,), 1, left=True)
