/* JSON as most clients write it, read where it lies: no escapes in names, no keys twice, numbers that a machine has.
Whatever is not so, or is no JSON, is told by 0, and read by Python (`app/protocol/http/json_part.py`),
which is the judge of it. Nothing here needs Python, so that long texts can be read without the interpreter's lock. */
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <string.h>

struct cursor {
    const char *at, *end;
};

struct text {
    const char *start; /* NULL: there is none */
    size_t size;
};

struct number {
    uint64_t digits;
    const char *start;
    size_t size;
    int exponent, negative, is_integer, is_rounded;
};

enum datatype { BOOL, UINT8, UINT16, UINT32, UINT64, INT8, INT16, INT32, INT64, FP16, BF16, FP32, FP64, BYTES, DATATYPES };

extern const char *const datatype_names[DATATYPES];
extern const unsigned char datatype_sizes[DATATYPES]; /* in bytes; 0 of BYTES */

static inline int next_is(const struct cursor *from, char character)
{
    return from->at < from->end && *from->at == character;
}

int is_text(struct text text, const char *word);
void skip_space(struct cursor *from);
/* Go past a character, and the space before it. */
int take(struct cursor *from, char character);
int read_text(struct cursor *from, struct text *text);
int read_bool(struct cursor *from, int *value);
/* A whole number from 0 to 2^63 - 1. */
int read_unsigned(struct cursor *from, uint64_t *value);
int read_number(struct cursor *from, struct number *number);
/* The nearest double; infinite numbers are none. */
int to_double(const struct number *number, double *value);
/* Go past an array without reading it: whoever does finds what is wrong with it. */
int skip_array(struct cursor *from);
/* The next member of an object: 1 and its key, 0 at the end, -1 for no object. `first` is 1 before the first. */
int next_member(struct cursor *from, int *first, struct text *key);
/* The next element of an array, which the caller reads: 1, 0 at the end, -1 for no array. */
int next_element(struct cursor *from, int *first);
/* Read a number or a truth value as a tensor has it. */
int read_value(struct cursor *from, enum datatype type, char *target);
/* Read so many values, whatever the nesting, into wire bytes. */
int read_values(struct cursor *from, enum datatype type, size_t count, char *target);
/* Read strings of any number into wire bytes, each behind its length, in `size` bytes, at most four thirds of their JSON. */
int read_strings(struct cursor *from, char *target, size_t *size);
/* Prepare what numbers are read by; returns 0, or -1. */
int prepare_numbers(void);
/* Return the bytes of a UTF-8 character of several, 0 for none. */
size_t long_character(const unsigned char *at, const unsigned char *end);

enum { MAX_DIGITS = 20 };

static inline char *put_bytes(char *to, const void *bytes, size_t size)
{
    memcpy(to, bytes, size);
    return to + size;
}

/* Each writes, and returns the end. */
char *write_digits(char *to, uint64_t number);
/* NULL where this is no UTF-8, or there is no room. */
char *write_quoted(char *to, const char *end, const unsigned char *at, size_t size);
/* Prepare what numbers are written by; returns 0, or -1 with a Python error. */
int prepare_writing(void);
/* The digits of the shortest decimal of a finite double but 0, without its sign, and the power of ten to multiply them by. */
uint64_t shortest_decimal(double value, int *exponent);
