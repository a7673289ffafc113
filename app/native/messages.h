/* Requests and responses as frames: those that most are. `app/transport/wire/messages.py` has the format, and reads
and writes all others: every function here returns None for what it does not know, malformed bytes among that. */
#pragma once

#include "module.h"

#include <stdint.h>

enum { UNSET = 32 };
enum { HEADER_SIZE = 32 };
enum kind { INFER = 1, RESPONSE = 2 };
enum { FINAL = 1 };

enum struct_type { TENSOR, OUTPUT, REQUEST, ANSWER, PLACE, TYPES };

/* Where the fields are that have to be empty, zero or False. */
struct unset {
    Py_ssize_t count, offsets[UNSET];
};

typedef struct {
    PyObject_HEAD
    PyTypeObject *types[TYPES];
    Py_ssize_t offsets[TYPES][MOST_SLOTS];
    struct unset request, response;
    Py_ssize_t max_meta, max_tensors, in_meta, place_code;
    PyObject *names;                        /* of the keywords by which a request is made */
    PyObject *encode_place, *decode_place; /* of a tensor in client memory */
} Messages;

extern PyTypeObject *messages_type;

/* Return a field, borrowed; NULL where it has no value. */
static inline PyObject *field(const Messages *self, enum struct_type type, PyObject *object, int number)
{
    return *(PyObject **)((char *)object + self->offsets[type][number]);
}

/* Return what a method returns: None for what is left to Python. */
static inline PyObject *none_if_left(PyObject *found)
{
    return found != NULL || PyErr_Occurred() ? found : Py_NewRef(Py_None);
}

/* Each returns a new reference; NULL with an error, or without one for what is left to Python. `connection`, which may
be NULL, shares large tensors with its peer. A message that was read has the places of those that the peer has shared, in
tuples, for `view_shared`. */
PyObject *request_frame(const Messages *self, PyObject *connection, PyObject *request, uint64_t stream, uint64_t left);
PyObject *response_frame(const Messages *self, PyObject *connection, PyObject *response, uint64_t stream);
/* Of a final response's model name, version, outputs, id and parameters. */
PyObject *frame_of(const Messages *self, PyObject *connection, PyObject *const *values, uint64_t stream);
PyObject *request_of(const Messages *self, const void *meta, size_t nbytes, PyObject *deadline);
PyObject *response_of(const Messages *self, const void *meta, size_t nbytes, PyObject *final);

/* Methods of the type. */
PyObject *write_request(Messages *self, PyObject *const *arguments, Py_ssize_t count);
PyObject *write_response(Messages *self, PyObject *const *arguments, Py_ssize_t count);
PyObject *read_request(Messages *self, PyObject *const *arguments, Py_ssize_t count);
PyObject *read_response(Messages *self, PyObject *const *arguments, Py_ssize_t count);
