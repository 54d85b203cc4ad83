"""What a sample costs: by the arithmetic of a transformer, or by any function of its length."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, Self, cast, get_args

import numpy as np
from numpy.typing import NDArray

from .errors import check_bool, finite, function, integer, one_of, other_signature
from .plan import IntArray
from .transformer import work_of

Pairs = Literal["causal", "bidirectional", "all"]


@dataclass(frozen=True)
class AttentionCost:
    """The cost linear B L + quadratic B L^2 of a padded batch, for `CostBudget`.

    `balance_cost=`, `balance`, `micro_batches` and `Packed` take it too, or a function of one length. A packed row costs
    the sum of its samples.

    With linear = 1, the unit is a token. `of` counts both from a model's configuration, in FLOPs. As a dataclass it prints,
    compares and pickles.

    Args:
        linear: cost of a token.
        quadratic: cost of a pair of tokens.
        windows: for layers with a sliding window: (w, cost of a pair) each. There a token sees itself and w - 1 before it.
    Raises:
        ValueError: a cost is negative, or a window is below 1.
    Example:
        >>> AttentionCost(quadratic=1 / 512)(4, 1024), AttentionCost(linear=2, quadratic=1 / 512)(4, 1024)
        (12288.0, 16384.0)
        >>> AttentionCost(quadratic=0, windows=((512, 1 / 512),))(1, 1024)
        1792.5
    """

    linear: float = field(default=1.0, kw_only=True)
    quadratic: float = field(kw_only=True)
    windows: tuple[tuple[int, float], ...] = field(default=(), kw_only=True)

    def __post_init__(self) -> None:
        if min(finite("linear", self.linear), finite("quadratic", self.quadratic)) < 0:
            found = f"{self.linear}, {self.quadratic}"
            raise ValueError(f"linear and quadratic must not be negative (got {found})")
        try:
            pairs = [(window, cost) for window, cost in self.windows]
        except (TypeError, ValueError) as error:
            example = "windows takes pairs of a size and the cost of a pair of tokens, such as ((4_096, 1 / 6_144),)"
            raise TypeError(f"{example} (got {self.windows!r})") from error
        windows = tuple((integer("windows", window, 1, "token"), finite("windows", cost)) for window, cost in pairs)
        if windows and min(cost for _, cost in windows) < 0:
            raise ValueError(f"windows must not have negative costs (got {self.windows})")
        object.__setattr__(self, "windows", windows)

    @classmethod
    def of(cls, config: Any, *, pairs: Pairs = "causal", head: bool = True, gated: bool | None = None) -> Self:
        """The FLOPs of a transformer's forward pass. A training step has three times as many.

        Each multiplication of matrices counts: projections, scores, feed-forward layers and the router of experts. A token
        goes through some of the experts, and only these count. Linear attention counts by its recurrence. Norms, rotations
        and the softmax do not count.

        Args:
            config: a configuration of transformers', or what its config.json holds, as a dict. If it has a `text_config`,
                that is counted.
            pairs: which pairs of tokens an attention kernel multiplies. "causal": each token with those before it, as
                FlashAttention does for decoders. "bidirectional": each with all, as it does for encoders. "all": each with
                all, also where a mask hides them, as eager attention does.
            head: whether the projection to the vocabulary counts.
            gated: whether feed-forward layers have a gate, a third matrix. None: by the model's type.
        Raises:
            ValueError: a setting is missing, or there are layers that are not counted here, such as those of Mamba.
        Price: microseconds.
        Example:
            >>> llama = {"hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8}
            >>> cost = AttentionCost.of(llama | {"intermediate_size": 14_336, "vocab_size": 128_256})
            >>> f"{cost(1, 8_192):.3e}"
            '1.406e+14'
        """
        check_bool("head", head)
        work = work_of(config, head=head, gated=gated)
        windows = work.windows.items()
        one_of("pairs", pairs, *get_args(Pairs))
        if pairs == "all":
            return cls(linear=work.token, quadratic=work.pair + sum(cost for _, cost in windows))
        if pairs == "causal":  # L (L + 1) / 2 of L^2
            return cls(linear=work.token + work.pair / 2, quadratic=work.pair / 2, windows=tuple(windows))
        # neighbours on both sides: those before twice, and the token itself once
        own = sum(cost for _, cost in windows)
        return cls(
            linear=work.token - own, quadratic=work.pair, windows=tuple((size, 2 * cost) for size, cost in windows)
        )

    def __call__(self, batch_size: int, padded_length: int) -> float:
        cost = padded_length * (self.linear + self.quadratic * padded_length)
        for window, pair in self.windows:
            cost += pair * _pairs(padded_length, min(padded_length, window), window)
        return batch_size * cost

    def of_lengths(self, lengths: IntArray) -> NDArray[np.float64]:
        """The cost of each sample alone, (n,), by its length.

        Example:
            >>> AttentionCost(quadratic=1 / 10).of_lengths(np.array([10, 20])).tolist()
            [20.0, 60.0]
        """
        tokens = np.asarray(lengths, np.float64)  # whose squares do not wrap around
        costs = tokens * (self.linear + self.quadratic * tokens)
        for window, pair in self.windows:
            costs += pair * _pairs(tokens, np.minimum(tokens, window), window)
        return costs


def _pairs(tokens: Any, rising: Any, window: int) -> Any:
    """The pairs in a window: token i sees i of those up to its own, for the first `rising` ones, and `window` from there on."""
    return rising * (rising + 1) / 2 + (tokens - rising) * window


SampleCost = AttentionCost | Callable[[int], float]


def sample_cost(name: str, cost: SampleCost) -> SampleCost:
    """What a user gave as the cost of a sample, which is refused where it is given if no length alone can be its argument.

    >>> sample_cost("balance_cost", lambda rows, length: rows * length)
    Traceback (most recent call last):
    TypeError: balance_cost must take one argument, the length of a sample (got <function ...>, which takes (rows, length)); ...
    """
    if not hasattr(function(name, cost), "of_lengths") and (signature := other_signature(cost, 1)):
        raise TypeError(
            f"{name} must take one argument, the length of a sample (got {cost!r}, which takes {signature}); give a function "
            "such as lambda length: length**2, or bf.AttentionCost(quadratic=...)"
        )
    return cost


def sample_costs(lengths: IntArray, cost: SampleCost | None, name: str = "cost") -> NDArray[np.float64]:
    """What samples of these lengths cost, (n,); by default their lengths. A function is called once for each distinct length.

    Args:
        name: the name that the user knows.
    Raises:
        ValueError: a cost is negative, or not finite where all samples have it.
        TypeError: a function gives something else than a number.

    >>> sample_costs(np.array([10, 20, 10]), AttentionCost(quadratic=1 / 10)).tolist()
    [20.0, 60.0, 20.0]
    """
    if cost is None:
        return lengths.astype(np.float64)
    sample_cost(name, cost)
    values, where = np.unique(lengths, return_inverse=True)
    with np.errstate(over="ignore"):
        if (of_lengths := getattr(cost, "of_lengths", None)) is not None:
            found = np.asarray(of_lengths(values), np.float64)
        else:
            given = [cast(Callable[[int], float], cost)(value) for value in values.tolist()]
            try:
                found = np.array(given, np.float64)
            except (TypeError, ValueError):  # of texts, and of some numbers and some lists
                found = np.zeros(0)
            except OverflowError:  # of 10**400
                found = np.full(len(values), np.inf)
            if found.shape != values.shape:
                raise TypeError(f"{name} must give a number for a length (cost({values[0]:,}) is {given[0]})")
        wrong = np.flatnonzero(~((found >= 0) & np.isfinite(found * len(lengths))))
    if len(wrong):
        value, costs = int(values[wrong[0]]), found[wrong[0]]
        raise ValueError(
            f"{name} must be finite and not negative (cost({value:,}) is {costs}), also in a sum of {len(lengths):,} samples"
        )
    costs_of: NDArray[np.float64] = found[where]
    return costs_of
