/* The shortest decimal that is read as the same double, the nearest of several: Schubfach, of Raffaello Giulietti. */
#include "module.h"

#include "json.h"

#include <string.h>

enum { LEAST = -292, MOST = 324, EXPONENT_BITS = 11, FRACTION_BITS = 52 };

/* 10^p as 126 bits before a power of two, one more than the floor, as 128 bits of which the first are 0. */
static unsigned __int128 powers[MOST - LEAST + 1];
static char pairs[100][2]; /* "00" to "99" */

static int log2_of_10_to(int power)
{
    return (int)(power * 913124641741ll >> 38);
}

int prepare_writing(void)
{
    static const char all[] = "b''.join(((v >> v.bit_length() - 126) + 1).to_bytes(16, 'little') for v in"
                              " ((10 ** (p + 292) << 1200) // 10 ** 292 for p in range(-292, 325)))";
    PyObject *names = Py_BuildValue("{sO}", "__builtins__", PyEval_GetBuiltins());
    PyObject *bytes = names == NULL ? NULL : PyRun_String(all, Py_eval_input, names, names);
    Py_XDECREF(names);
    if (bytes == NULL)
        return -1;
    memcpy(powers, PyBytes_AS_STRING(bytes), sizeof powers);
    Py_DECREF(bytes);
    for (int i = 0; i < 100; i++)
        pairs[i][0] = (char)('0' + i / 10), pairs[i][1] = (char)('0' + i % 10);
    return 0;
}

char *write_digits(char *to, uint64_t number)
{
    char digits[MAX_DIGITS], *at = digits + MAX_DIGITS;
    for (; number >= 100; number /= 100)
        memcpy(at -= 2, pairs[number % 100], 2);
    memcpy(at -= 2, pairs[number], 2);
    at += number < 10;
    return put_bytes(to, at, (size_t)(digits + MAX_DIGITS - at));
}

/* Return the product without its last 127 bits, odd where any of those but the last 64 is set. */
static uint64_t round_to_odd(unsigned __int128 power, uint64_t factor)
{
    unsigned __int128 high = (power >> 63) * factor, low = (power & INT64_MAX) * factor;
    uint64_t middle = ((uint64_t)high >> 1) + (uint64_t)(low >> 64);
    return ((uint64_t)(high >> 64) + (middle >> 63)) | (middle << 1 != 0);
}

uint64_t shortest_decimal(double value, int *exponent)
{
    uint64_t bits, fraction;
    memcpy(&bits, &value, sizeof bits);
    fraction = bits & ((1ull << FRACTION_BITS) - 1);
    int biased = (int)(bits >> FRACTION_BITS & ((1 << EXPONENT_BITS) - 1)), is_narrow = fraction == 0 && biased > 1;
    uint64_t whole = biased == 0 ? fraction : fraction | 1ull << FRACTION_BITS, odd = whole & 1;
    int binary = (biased == 0 ? 1 : biased) - 1075; /* the value is whole * 2^binary */
    *exponent = (int)((binary * 661971961083ll - (is_narrow ? 274743187321ll : 0)) >> 41);
    int shift = binary + log2_of_10_to(-*exponent) + 2;
    unsigned __int128 power = powers[-*exponent - LEAST];
    /* Four times the value, and the ends of what is read as it, in units of the last digit; an even one has its ends too. */
    uint64_t scaled = round_to_odd(power, whole << 2 << shift);
    uint64_t low = round_to_odd(power, ((whole << 2) - (is_narrow ? 1 : 2)) << shift) + odd;
    uint64_t high = round_to_odd(power, ((whole << 2) + 2) << shift) - odd, digits = scaled >> 2;
    uint64_t fewer = digits / 10 * 10;
    if (digits >= 10 && (low <= fewer << 2) != ((fewer + 10) << 2 <= high))
        return low <= fewer << 2 ? fewer : fewer + 10;
    int below = low <= digits << 2, above = (digits + 1) << 2 <= high;
    if (below != above)
        return digits + (uint64_t)above;
    uint64_t half = (digits << 2) + 2;
    return digits + (scaled > half || (scaled == half && digits & 1));
}
