/* Writing msgpack, in its shortest form, into memory of a fixed size. */
#pragma once

#include "messages.h"

#include <string.h>

/* `failed` once something has no plain encoding, or no room is left. */
struct writer {
    unsigned char *bytes;
    size_t size, room;
    int failed;
    PyObject *connection; /* that shares large tensors, or NULL */
    PyObject *places;     /* of those that it has shared, in tuples */
};

static inline unsigned char *reserve(struct writer *to, size_t nbytes)
{
    if (to->failed || nbytes > to->room - to->size) {
        to->failed = 1;
        return NULL;
    }
    unsigned char *place = to->bytes + to->size;
    to->size += nbytes;
    return place;
}

static inline void put_big_endian(struct writer *to, int code, uint64_t value, int width)
{
    unsigned char *place = reserve(to, 1 + (size_t)width);
    if (place == NULL)
        return;
    *place++ = (unsigned char)code;
    while (width-- > 0)
        *place++ = (unsigned char)(value >> 8 * width);
}

/* The size of a sequence: within the code itself below `few`, else in as few bytes as its kind has. */
static inline void put_size(struct writer *to, size_t size, int short_code, size_t few, int byte_code)
{
    if (size < few)
        put_big_endian(to, short_code | (int)size, 0, 0);
    else if (size <= UINT8_MAX)
        put_big_endian(to, byte_code, size, 1);
    else if (size <= UINT16_MAX)
        put_big_endian(to, byte_code + 1, size, 2);
    else
        put_big_endian(to, byte_code + 2, size, 4);
}

static inline void put_array(struct writer *to, Py_ssize_t size)
{
    if (size < 16)
        put_big_endian(to, 0x90 | (int)size, 0, 0);
    else if (size <= UINT16_MAX)
        put_big_endian(to, 0xdc, (uint64_t)size, 2);
    else
        put_big_endian(to, 0xdd, (uint64_t)size, 4);
}

static inline void put_bytes(struct writer *to, const void *bytes, size_t size)
{
    unsigned char *place = reserve(to, size);
    if (place != NULL && size)
        memcpy(place, bytes, size);
}

static inline void put_text(struct writer *to, PyObject *text)
{
    Py_ssize_t size;
    if (text == NULL || !PyUnicode_CheckExact(text)) {
        to->failed = 1;
        return;
    }
    const char *bytes = PyUnicode_AsUTF8AndSize(text, &size);
    if (bytes == NULL) { /* a lone surrogate */
        PyErr_Clear();
        to->failed = 1;
        return;
    }
    put_size(to, (size_t)size, 0xa0, 32, 0xd9);
    put_bytes(to, bytes, (size_t)size);
}

static inline void put_unsigned(struct writer *to, uint64_t value)
{
    if (value < 128)
        put_big_endian(to, (int)value, 0, 0);
    else if (value <= UINT8_MAX)
        put_big_endian(to, 0xcc, value, 1);
    else if (value <= UINT16_MAX)
        put_big_endian(to, 0xcd, value, 2);
    else if (value <= UINT32_MAX)
        put_big_endian(to, 0xce, value, 4);
    else
        put_big_endian(to, 0xcf, value, 8);
}

static inline void put_number(struct writer *to, PyObject *number)
{
    int overflow = 1;
    long long value = -1;
    if (number != NULL && PyLong_CheckExact(number))
        value = PyLong_AsLongLongAndOverflow(number, &overflow);
    if (overflow || value < 0)
        to->failed = 1;
    else
        put_unsigned(to, (uint64_t)value);
}
