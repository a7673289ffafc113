/* The ends of a channel: `app/transport/channel/connection.py` says what an end does. Here is its way for most small
messages; every other frame, and whatever is wrong with one, is left to Python, before anything was done. */
#pragma once

#include "messages.h"

#include <stddef.h>

#include "structmember.h"

typedef struct {
    PyObject_HEAD
    Messages *messages;
    PyObject *connection; /* the Python object */
    PyObject *table;      /* what is in flight, by stream */
    PyObject *flush;      /* has the frames written later */
    PyObject *frames;     /* the buffers to be written */
    Py_ssize_t nbytes;    /* of them */
    Py_ssize_t limit;     /* of these bytes; what lies beyond is left to Python */
    Py_ssize_t max_frame;
    uint64_t last_stream; /* that a client has opened */
    char flush_scheduled;
} End;

struct frame {
    int kind, flags;
    uint64_t stream, left;
    const unsigned char *meta;
    size_t meta_size;
};

/* Handle a frame: 1, or 0 to leave it to Python, or -1 with an error. */
typedef int (*frame_handler)(End *self, const struct frame *frame);

/* Handle the frames of a kind at the start of a buffer; arguments and result are those of the method `take`. */
PyObject *take_frames(End *self, PyObject *const *arguments, Py_ssize_t count, enum kind kind, frame_handler handle);

/* Append a frame, a reference that is taken, to what is written; -1 with an error. */
int queue_frame(End *self, PyObject *frame);

/* Make an end of a type; NULL with an error. */
End *new_end(PyTypeObject *type, PyObject *messages, PyObject *connection, PyObject *table, PyObject *flush);
int traverse_end(End *self, visitproc visit, void *arg);
int clear_end(End *self);
void delete_end(End *self);

/* Whether the collector has cleared it: nothing can be done any more. */
static inline int is_cleared(const End *self)
{
    return self->connection == NULL || self->table == NULL || self->flush == NULL;
}

#define END_MEMBERS \
    {"frames", T_OBJECT_EX, offsetof(End, frames), 0, NULL}, {"nbytes", T_PYSSIZET, offsetof(End, nbytes), 0, NULL}, \
        {"last_stream", T_ULONGLONG, offsetof(End, last_stream), 0, NULL}, \
    { \
        "flush_scheduled", T_BOOL, offsetof(End, flush_scheduled), 0, NULL \
    }

/* Put views where a message, a request or a response, has places of shared memory; -1 with an error. */
int view_shared(End *self, enum struct_type type, PyObject *message);

/* Call a method of the connection; -1 with an error. */
int notify(End *self, PyObject *name, PyObject *first, PyObject *second, PyObject *third);

/* Whether an attribute of the connection is true; -1 with an error. */
int is_set(End *self, PyObject *name);

/* Return the exception that was raised; NULL, with that exception, for one that no handler of requests may catch. */
PyObject *caught(void);

/* Answer a request with a model's name, version, outputs, the request's id and parameters; NULL with an error, or
without one for what has to be given to the sink as a response. */
PyObject *send_plain(PyObject *sink, PyObject *const *values);

int add_client_end(PyObject *module);
int add_server_end(PyObject *module);
int add_plain_requests(PyObject *module);
