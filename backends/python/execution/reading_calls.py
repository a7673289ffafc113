"""Functions and methods that change none of their arguments, with how many of these may be given by position.

One more is where many functions of numpy write. By keyword, only `KEYWORDS` may be given: `out`, `copy` and
functions that are called back are none of them.
"""

from typing import Final

_MANY: Final = 32


def _words(names: str) -> frozenset[str]:
    return frozenset(names.split())


def _each(most: int, names: str) -> dict[str, int]:
    return dict.fromkeys(_words(names), most)


KEYWORDS: Final = _words(
    """axes axis code ddof dtype end error indent keepdims message ndmin output_tensors reverse sep
    shape start strict"""
)

ITERATORS: Final = _words("enumerate reversed zip")
"""Builtins whose results are used up: they may be given to loops and `CONSUMING` alone, and not be kept."""
CONSUMING: Final = _words("all any dict frozenset list max min set sorted sum tuple")
BUILTINS: Final = _words(
    """all any dict enumerate frozenset list max min reversed set sorted sum tuple zip abs bool bytes
    chr divmod float int isinstance issubclass len ord pow print range repr round slice str
    Exception IndexError KeyError RuntimeError TypeError ValueError"""
)
METHODS: Final = {
    **_each(1, "all any argmax argmin dot max min round"),
    **_each(2, "clip mean prod std sum take var"),
    **_each(
        _MANY,
        """argsort as_numpy astype copy correlation_id decode encode endswith format get index inputs
        items join keys lower lstrip name ravel request_id requested_output_names reshape rstrip
        split squeeze startswith strip swapaxes tobytes tolist transpose upper values""",
    ),
}
"""Of numpy's arrays, strings, dictionaries, requests and tensors."""
CHANGING: Final = _words(
    "add append clear discard extend fill insert pop remove reverse setdefault sort update"
)
"""Methods that may be called of an object that the function itself has made."""
COMPLETING: Final = _words(
    """add_input add_output as_dict set_dynamic_batching set_max_batch_size
    set_model_transaction_policy"""
)
"""Methods of what `auto_complete_config` is given."""

MAKING: Final = _words("array empty empty_like full full_like ones ones_like zeros zeros_like")
"""Functions of numpy whose result shares no memory with anything."""
NUMPY: Final = {
    **_each(
        1,
        """abs absolute arccos arcsin arctan argwhere bool_ bytes_ cbrt ceil column_stack conjugate cos
        cosh deg2rad degrees dstack dtype exp exp2 expm1 fabs fix float16 float32 float64 floor
        hstack int16 int32 int64 int8 invert isfinite isinf isnan load log log10 log1p log2
        logical_not nan_to_num negative nonzero object_ positive rad2deg radians reciprocal rint
        sign sin sinh sqrt square str_ tan tanh trunc uint16 uint32 uint64 uint8 unique vstack""",
    ),
    **_each(
        2,
        """add all amax amin any arctan2 argmax argmin argsort around array array_equal asarray
        ascontiguousarray bincount bitwise_and bitwise_or bitwise_xor broadcast_to concatenate
        copysign diff divide dot empty empty_like equal expand_dims flip float_power floor_divide
        fmax fmin fmod frombuffer greater greater_equal heaviside hypot identity inner kron
        left_shift less less_equal logical_and logical_or logical_xor matmul max maximum median min
        minimum mod multiply not_equal ones ones_like outer pad power ravel remainder right_shift
        round sort squeeze stack subtract tile transpose true_divide vdot zeros zeros_like""",
    ),
    **_each(
        3,
        """arange array_split clip cumprod cumsum eye full full_like linspace mean moveaxis percentile
        prod quantile repeat reshape roll searchsorted split std sum swapaxes take tensordot var
        where""",
    ),
    **_each(_MANY, "einsum"),
}
