/* Unary calls of gRPC that need nothing but their frames: what `app/ingress/http2` does for most of them.

Its objects have all of the state: each function changes them as Python's would, or does not touch them and leaves the
frame, or the response, to Python. Malformed bytes and every limit that is reached are left to it, so that there is one
judge of them. */
#include "slots.h"

#include <stdint.h>

enum { HUFFMAN_SIZE = 256 * 16 * 3 };

enum call_type { CONNECTION, READER, OUTPUT, KEEPALIVE, STREAM, CALL, REQUEST, ANSWER, TENSOR, WANTED, REGION, HEAD, MESSAGE, CALL_TYPES };

enum { PATH, TIMEOUT_S, ENCODING, ACCEPTS_GZIP, METADATA, REFUSAL, HEAD_FIELDS }; /* of a `CallHead` */

typedef struct {
    PyObject_HEAD
    PyObject *given; /* the arguments, which keep what is given: state to decode_request, and the types */
    PyTypeObject *types[CALL_TYPES], *sink_type, *decoder_type;
    Py_ssize_t slots[CALL_TYPES][MOST_SLOTS];
    PyObject *state, *handlers, *on_cancel;
    PyObject *headers, *trailers; /* header blocks of every response */
    PyObject *static_table, *huffman, *decode_metadata, *refuse; /* what decodes header blocks */
    PyObject *decode_request, *request_names, *output_names;    /* what reads messages */
    PyObject *zero, *no_deadline;
    long long max_header, max_calls, max_streams, max_buffered, max_message, max_control_frames, stream_window,
        connection_window, max_frame;
} UnaryCalls;

static inline PyObject *get(const UnaryCalls *self, enum call_type type, PyObject *object, int number)
{
    return slot(object, self->slots[type][number]);
}

/* Set a slot; the reference of `value` is taken over. */
static inline void set(const UnaryCalls *self, enum call_type type, PyObject *object, int number, PyObject *value)
{
    set_slot(object, self->slots[type][number], value);
}

/* Whether an object is of the type, and not of one derived from it. */
static inline int is(const UnaryCalls *self, enum call_type type, PyObject *object)
{
    return object != NULL && Py_TYPE(object) == self->types[type];
}

/* Set a slot to an int, and the functions below an attribute of the state; -1 with an error. */
int set_number(const UnaryCalls *self, enum call_type type, PyObject *object, int number, long long value);
int get_count(const UnaryCalls *self, PyObject *name, long long *count);
int set_count(const UnaryCalls *self, PyObject *name, long long count);

/* Methods of the type. */
PyObject *receive_calls(UnaryCalls *self, PyObject *const *arguments, Py_ssize_t count);
PyObject *make_sink(UnaryCalls *self, PyObject *const *arguments, Py_ssize_t count);
PyObject *make_decoder(UnaryCalls *self, PyObject *ignored);
PyObject *read_message(UnaryCalls *self, PyObject *const *arguments, Py_ssize_t count);

/* Answer a call; return 1, 0 if that is left to Python, or -1 with an error. */
int respond_to_call(UnaryCalls *self, PyObject *call, PyObject *request, PyObject *response);

/* Decode a header block to a `CallHead`, a new reference; NULL with an error, which ends the connection. `decoder` is what
`make_decoder` has made. */
PyObject *read_block(PyObject *decoder, const unsigned char *bytes, Py_ssize_t size);

/* Return where the first long tensor of a message is; 0 if its beginning does not show it. */
Py_ssize_t tensor_offset(const unsigned char *message, Py_ssize_t size);

/* Return the types of what `make_sink` and `make_decoder` make, new references. */
PyTypeObject *make_sink_type(void);
PyTypeObject *make_decoder_type(void);
