/* Unary calls of gRPC that need nothing but their frames: what `app/ingress/http2` does for most of them.

Its objects have all of the state: each function changes them as Python's would, or does not touch them and leaves the
frame, or the response, to Python. Malformed bytes and every limit that is reached are left to it, so that there is one
judge of them. */
#include "slots.h"

#include <stdint.h>

enum call_type { CONNECTION, READER, HEADERS, OUTPUT, KEEPALIVE, STREAM, CALL, REQUEST, ANSWER, TENSOR, WANTED, CALL_TYPES };
enum { CALL_SLOTS = 14 };

/* The slots of each type that are used, in the order of `names` in calls.c. */
enum { C_READER, C_BLOCK, C_HEADERS, C_OUTPUT, C_STREAMS, C_LAST_STREAM, C_RECEIVED, C_DRAINING };
enum { R_REST, R_MISSING };
enum { H_KNOWN };
enum { O_FRAMES, O_WINDOW, O_INITIAL_WINDOW, O_FRAME_SIZE, O_WAITING, O_KEEPALIVE, O_STREAMS, O_CORKED, O_ON_IDLE,
       O_LOOP };
enum { K_SENT, K_HEARD, K_SECOND, K_COUNTS };
enum { S_OUTPUT, S_ID, S_RECEIVER, S_WINDOW, S_RECEIVED, S_CREDIT, S_ENDED, S_OVER, S_QUEUE, S_TRAILERS, S_DRAINED };
enum { U_STATE, U_STREAM, U_HEAD, U_READER, U_BUFFERED, U_HEADERS_SENT, U_OVER, U_TIMER, U_DEADLINE, U_HANDLER, U_MESSAGE,
       U_ON_CANCEL };
enum { Q_ID, Q_OUTPUTS };
enum { A_MODEL_NAME, A_MODEL_VERSION, A_OUTPUTS, A_PARAMETERS, A_FAILURE };
enum { T_NAME, T_DATATYPE, T_SHAPE, T_DATA };
enum { W_CLASSIFICATION };

typedef struct {
    PyObject_HEAD
    PyTypeObject *types[CALL_TYPES], *sink_type;
    Py_ssize_t slots[CALL_TYPES][CALL_SLOTS];
    PyObject *state, *handlers, *on_cancel;
    PyObject *headers, *trailers; /* header blocks of every response */
    PyObject *calls, *buffered, *count, *start_timer, *cancel, *flush, *call_soon, *zero, *no_deadline; /* names, numbers */
    long long max_calls, max_streams, max_buffered, max_message, max_control_frames, stream_window, connection_window;
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

/* Answer a call; return 1, 0 if that is left to Python, or -1 with an error. */
int respond_to_call(UnaryCalls *self, PyObject *call, PyObject *request, PyObject *response);

/* Return the type of what `make_sink` makes, a new reference. */
PyTypeObject *make_sink_type(void);
