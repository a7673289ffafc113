/* Frames that are received. */
#pragma once

#include "calls.h"

enum { END_STREAM = 1, LONG = 16384 }; /* DATA of this length is not buffered */

struct frame {
    const unsigned char *payload;
    Py_ssize_t length;
    int kind, flags;
    long long stream;
};

static inline uint32_t big_endian(const unsigned char *bytes)
{
    return (uint32_t)bytes[0] << 24 | (uint32_t)bytes[1] << 16 | (uint32_t)bytes[2] << 8 | bytes[3];
}

/* Return a stream that is open, borrowed; NULL for none, and with an error. */
PyObject *find_stream(UnaryCalls *self, PyObject *connection, long long number);

/* Handle DATA, a frame or a piece of one: 1, or 0 to leave it to Python, or -1 with an error. */
int receive_data(UnaryCalls *self, PyObject *connection, const struct frame *data);
