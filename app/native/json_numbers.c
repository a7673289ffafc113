/* Numbers of JSON, and the values of tensors. */
#define _GNU_SOURCE
#include "json.h"

#include <float.h>
#include <locale.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { EXACT_DIGITS = 19, LONGEST_NUMBER = 64, EXACT_POWER = 22, EXTENDED_POWER = 27 };

const char *const datatype_names[DATATYPES] = {"BOOL",  "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16",
                                               "INT32", "INT64", "FP16",   "BF16",   "FP32",   "FP64", "BYTES"};
const unsigned char datatype_sizes[DATATYPES] = {1, 1, 2, 4, 8, 1, 2, 4, 8, 2, 2, 4, 8, 0};

static const double powers[EXACT_POWER + 1] = {1e0,  1e1,  1e2,  1e3,  1e4,  1e5,  1e6,  1e7,  1e8,  1e9,  1e10, 1e11,
                                               1e12, 1e13, 1e14, 1e15, 1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22};
static locale_t c_locale; /* in others a number may have a comma */

int prepare_numbers(void)
{
    if (c_locale == (locale_t)0)
        c_locale = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    return c_locale == (locale_t)0 ? -1 : 0;
}

static int is_digit(const struct cursor *from)
{
    return from->at < from->end && *from->at >= '0' && *from->at <= '9';
}

/* Read digits into a number; returns how many there are. */
static size_t read_digits(struct cursor *from, struct number *number, int *significant)
{
    const char *start = from->at;
    for (; is_digit(from); from->at++) {
        int digit = *from->at - '0';
        if (*significant == EXACT_DIGITS) {
            number->is_rounded = 1; /* or the zeros at its end, which are rare */
            continue;
        }
        number->digits = number->digits * 10 + (uint64_t)digit;
        *significant += number->digits != 0;
    }
    return (size_t)(from->at - start);
}

static int read_exponent(struct cursor *from, int *exponent)
{
    int value = 0, negative = next_is(from, '-'), digits = 0;
    from->at += negative || next_is(from, '+');
    for (; is_digit(from) && digits < 4; digits++)
        value = value * 10 + *from->at++ - '0';
    *exponent += negative ? -value : value;
    return digits > 0 && !is_digit(from);
}

int read_number(struct cursor *from, struct number *number)
{
    int significant = 0;
    skip_space(from);
    *number = (struct number){.start = from->at, .is_integer = 1};
    number->negative = next_is(from, '-');
    from->at += number->negative;
    const char *whole = from->at;
    size_t digits = read_digits(from, number, &significant);
    if (digits == 0 || (digits > 1 && *whole == '0'))
        return 0;
    if (next_is(from, '.')) {
        from->at++;
        size_t places = read_digits(from, number, &significant);
        if (places == 0 || places > LONGEST_NUMBER)
            return 0;
        number->exponent = -(int)places;
        number->is_integer = 0;
    }
    if (next_is(from, 'e') || next_is(from, 'E')) {
        from->at++;
        if (!read_exponent(from, &number->exponent))
            return 0;
        number->is_integer = 0;
    }
    number->size = (size_t)(from->at - number->start);
    return number->size < LONGEST_NUMBER;
}

/* Compute a number with a rounding of 64 bits, and one of 53 where that is sure not to change the result. */
static int in_extended_precision(const struct number *number, double *value)
{
#if LDBL_MANT_DIG == 64
    static const long double more[] = {1e23L, 1e24L, 1e25L, 1e26L, 1e27L};
    int power = number->exponent < 0 ? -number->exponent : number->exponent;
    if (number->is_rounded || power > EXTENDED_POWER)
        return 0;
    long double factor = power <= EXACT_POWER ? (long double)powers[power] : more[power - EXACT_POWER - 1];
    long double result = number->exponent < 0 ? (long double)number->digits / factor : (long double)number->digits * factor;
    uint64_t bits;
    memcpy(&bits, &result, sizeof bits);
    uint64_t dropped = bits & 0x7ff; /* half of the last of 53 bits is 0x400 */
    if (dropped >= 0x3ff && dropped <= 0x401)
        return 0;
    *value = (double)result;
    return 1;
#else
    (void)number, (void)value;
    return 0;
#endif
}

static int by_the_library(const struct number *number, double *value)
{
    char copy[LONGEST_NUMBER + 1], *end;
    memcpy(copy, number->start, number->size);
    copy[number->size] = '\0';
    *value = fabs(strtod_l(copy, &end, c_locale));
    return *end == '\0' && isfinite(*value);
}

int to_double(const struct number *number, double *value)
{
    int exponent = number->exponent;
    if (!number->is_rounded && number->digits <= (1ull << 53) && exponent >= -EXACT_POWER && exponent <= EXACT_POWER)
        *value = exponent < 0 ? (double)number->digits / powers[-exponent] : (double)number->digits * powers[exponent];
    else if (!in_extended_precision(number, value) && !by_the_library(number, value))
        return 0;
    if (number->negative)
        *value = -*value;
    return !(number->is_integer && number->negative && number->digits == 0); /* Python has no such whole number */
}

int read_unsigned(struct cursor *from, uint64_t *value)
{
    struct number number;
    int known = read_number(from, &number) && number.is_integer && !number.is_rounded && !number.negative;
    *value = number.digits;
    return known && number.digits <= INT64_MAX;
}

#define STORE(type, value)                             \
    do {                                               \
        type stored = (type)(value);                   \
        memcpy(target, &stored, sizeof stored);        \
        return 1;                                      \
    } while (0)

static int store_unsigned(uint64_t value, enum datatype type, char *target)
{
    switch (type) {
    case UINT8:
    case INT8:
        STORE(uint8_t, value);
    case UINT16:
    case INT16:
        STORE(uint16_t, value);
    case UINT32:
    case INT32:
        STORE(uint32_t, value);
    default:
        STORE(uint64_t, value);
    }
}

/* What does not fit the type is cast, as in Triton. */
static int read_whole(struct cursor *from, enum datatype type, char *target)
{
    struct number number;
    if (!read_number(from, &number) || !number.is_integer || number.is_rounded)
        return 0;
    int is_signed = type >= INT8;
    if (is_signed ? number.digits > INT64_MAX : number.negative)
        return 0;
    return store_unsigned(number.negative ? 0 - number.digits : number.digits, type, target);
}

static int read_real(struct cursor *from, enum datatype type, char *target)
{
    struct number number;
    double value;
    if (!read_number(from, &number) || !to_double(&number, &value))
        return 0;
    if (type == FP64)
        STORE(double, value);
    STORE(float, value);
}

int read_value(struct cursor *from, enum datatype type, char *target)
{
    int value;
    if (type == FP32 || type == FP64)
        return read_real(from, type, target);
    if (type != BOOL)
        return read_whole(from, type, target);
    if (!read_bool(from, &value))
        return 0;
    *target = (char)value;
    return 1;
}
