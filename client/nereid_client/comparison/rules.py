"""What may differ between two answers to the same request: a rule for each output.

Used for mirrored requests and recorded rows of rollouts, and for replays, so that a tolerance means the same
everywhere.
"""

from collections.abc import Sequence
from typing import Annotated, Final, Literal

import msgspec

Tolerance = Annotated[float, msgspec.Meta(ge=0)]
FLOATS: Final = ("FP16", "FP32", "FP64", "BF16")
OTHERS: Final = "*"
"""The name by which `ComparisonRules.outputs` has the rule of outputs that it does not name."""


class OutputRule(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """How much an output may differ from the one that is expected.

    Without `atol`, `rtol` and `cosine` floats have the default of their shape: vectors (what is along the
    last axis) a cosine of `COSINE`, and elements within `OF_LARGEST` of the vector's largest; single values
    `RTOL` and `ATOL`. Other types are to be equal, unless `atol` or `rtol` is given for integers.

    Attributes:
        atol, rtol: an element b is within the rule if abs(a - b) <= atol + rtol * abs(a); a is expected.
        cosine: the lowest cosine of the angle between two vectors; vectors of one element have none.
        share: the part of the elements that has to be within the rule, and of the vectors whose largest
            element has to be the same.
        argmax: whether the largest element of each vector has to be the same, where its lead exceeds the
            margin; None: where all vectors are probabilities of at least two classes.
    """

    atol: Tolerance | None = None
    rtol: Tolerance | None = None
    cosine: Annotated[float, msgspec.Meta(ge=-1, le=1)] | None = None
    share: Annotated[float, msgspec.Meta(gt=0, le=1)] = 1.0
    argmax: bool | None = None

    @property
    def is_default(self) -> bool:
        """Whether tolerances are those of the output's shape."""
        return self.atol is None and self.rtol is None and self.cosine is None


Rule = OutputRule | Literal["ignore", "exact", "argmax", "ctc"]
"""`ignore`: anything is right. `exact`: the same values. `argmax`: only which element is largest counts.
`ctc`: only the text counts, of the largest elements of steps, each once where it repeats, without class 0."""

COSINE: Final = 0.98
OF_LARGEST: Final = 0.25
RTOL: Final = 0.05
ATOL: Final = 1e-5
"""Defaults that separate EfficientNet in bfloat16 (right) from its quantisation to 8 bits by a tool's
defaults (wrong); see the page about rollouts."""
DEFAULT_AGREEMENT: Final = 0.99
"""The share of the answers that has to be within the rules where somebody has to know and nobody says."""


class ComparisonRules(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is compared, and what may differ.

    Attributes:
        outputs: rules by the name of the output; `*` for all others.
        margin: in units of the output; vectors whose largest element leads by less are near ties, of which
            either class is right: they are counted apart.
        min_agreement: the share of the answers that has to be within the rules; by default
            `DEFAULT_AGREEMENT`.
    """

    outputs: dict[str, Rule] = {}
    margin: Tolerance = 0.02
    min_agreement: Annotated[float, msgspec.Meta(ge=0, le=1)] | None = None

    @property
    def allowed(self) -> float:
        """The share of the answers that may be outside the rules."""
        return 1 - (DEFAULT_AGREEMENT if self.min_agreement is None else self.min_agreement)

    def rule(self, output: str) -> Rule:
        """Return the rule of an output."""
        return self.outputs.get(output) or self.outputs.get(OTHERS) or _DEFAULT

    def nothing_compared(self, output: str, datatype: str, shape: Sequence[int]) -> str:
        """Return why the rule of an output finds whatever it has right; "" if it does not, or is `ignore`.

        Args:
            output: its name.
            datatype: Triton's; "" if it is not known.
            shape: of which the last one counts; dimensions that are not known are negative.
        """
        rule, single = self.rule(output), bool(shape) and shape[-1] == 1
        if rule in ("argmax", "ctc"):
            if datatype == "BYTES":
                return f"{rule} of output '{output}': BYTES have no largest element"
            if single:
                return f"{rule} of output '{output}': of one element alone none is larger"
        only_cosine = isinstance(rule, OutputRule) and not rule.is_default and rule.atol is rule.rtol is None
        if only_cosine and single and datatype in FLOATS:
            return f"cosine of output '{output}': vectors of one element have none: give atol or rtol"
        return ""


_DEFAULT: Final = OutputRule()
