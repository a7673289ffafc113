/* The message of a response, and its frames. */
#pragma once

#include "calls.h"

enum { PREFIX_SIZE = 5, LONGEST = 16384, MAX_OUTPUTS = 16 };

/* Writing. `failed` once something has no plain encoding, or no room. */
struct writer {
    unsigned char *at, *end;
    int failed;
};

/* What follows so many bytes of a message: data that is not among them. */
struct apart {
    size_t at, size;
    PyObject *data;
};

struct message {
    struct writer to;
    int count;
    size_t apart; /* the bytes of all of these */
    struct apart parts[MAX_OUTPUTS];
    unsigned char bytes[LONGEST];
};

/* A message that is cut into frames: buffers, and bytes that are to be the next of them. */
struct cut {
    PyObject *buffers;
    struct writer to;
    size_t left, room, frame_size; /* of the DATA without a frame, and of the frame that was begun */
    long long stream;
    unsigned char bytes[LONGEST + 1024];
};

/* Write the message of a response, behind the place of its prefix; `to.failed` is set where that is left to Python. */
void put_message(const UnaryCalls *self, struct message *message, PyObject *request, PyObject *response);

/* Return all frames of a call, in a list; NULL with an error. */
PyObject *make_frames(const UnaryCalls *self, struct cut *cut, struct message *message);
