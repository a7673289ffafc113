/* The type `ClientEnd`: sends requests, and hands responses to their sinks. */
#include "ends.h"

#include <time.h>

enum { LONGEST_DEADLINE = 7 * 86400 }; /* seconds; one further away is left to Python, which does not send it */

typedef struct {
    End end;
    PyTypeObject *call;            /* `ChannelCall` */
    Py_ssize_t offsets[L_SLOTS];   /* of its fields */
    PyObject *no_sink, *deadlines;
    PyObject *zero;
} ClientEnd;

static PyObject **call_field(const ClientEnd *self, PyObject *call, int number)
{
    return (PyObject **)((char *)call + self->offsets[number]);
}

static PyObject *new_call(ClientEnd *self, PyObject *stream, PyObject *sink, PyObject *request_id)
{
    PyObject *call = self->call->tp_alloc(self->call, 0);
    if (call == NULL)
        return NULL;
    *call_field(self, call, L_CHANNEL) = Py_NewRef(self->end.connection);
    *call_field(self, call, L_STREAM) = Py_NewRef(stream);
    *call_field(self, call, L_SINK) = Py_NewRef(sink);
    *call_field(self, call, L_REQUEST_ID) = Py_NewRef(request_id);
    *call_field(self, call, L_BUCKET) = Py_NewRef(self->zero);
    return call;
}

/* Read how many microseconds a request has left, 0 without a deadline; return whether it can be sent without Python. */
static int read_left(const End *end, PyObject *request, uint64_t *left)
{
    PyObject *deadline = field(end->messages, REQUEST, request, Q_DEADLINE);
    struct timespec now;
    *left = 0;
    if (deadline == NULL || !PyFloat_CheckExact(deadline))
        return 0;
    if (PyFloat_AS_DOUBLE(deadline) == 0.0)
        return 1;
    clock_gettime(CLOCK_MONOTONIC, &now);
    double seconds = PyFloat_AS_DOUBLE(deadline) - (double)now.tv_sec - (double)now.tv_nsec * 1e-9;
    *left = seconds < 1e-6 ? 1 : (uint64_t)(seconds < LONGEST_DEADLINE ? seconds * 1e6 : 0.0);
    return *left > 0;
}

/* Whether a request can be sent without Python; -1 with an error. */
static int is_plain(ClientEnd *self, PyObject *request, uint64_t *left)
{
    End *end = &self->end;
    if (is_cleared(end) || end->nbytes > end->limit || Py_TYPE(request) != end->messages->types[REQUEST] ||
        !read_left(end, request, left))
        return 0;
    int closing = is_set(end, texts.closing);
    int draining = closing ? closing : is_set(end, texts.draining);
    return draining < 0 ? -1 : !draining;
}

/* Enter a call, and its deadline. */
static int enter(ClientEnd *self, PyObject *stream, PyObject *call, PyObject *deadline)
{
    if (PyDict_SetItem(self->end.table, stream, call) < 0)
        return -1;
    if (deadline == NULL)
        return 0;
    PyObject *bucket = PyObject_CallMethodObjArgs(self->deadlines, texts.add, stream, deadline, NULL);
    if (bucket == NULL)
        return -1;
    Py_XSETREF(*call_field(self, call, L_BUCKET), bucket);
    return 0;
}

static PyObject *send_request(ClientEnd *self, PyObject *const *arguments, Py_ssize_t count)
{
    End *end = &self->end;
    uint64_t left;
    if (count != 2) {
        PyErr_SetString(PyExc_TypeError, "request, sink");
        return NULL;
    }
    PyObject *request = arguments[0];
    int plain = is_plain(self, request, &left);
    PyObject *frame = plain <= 0 ? NULL : request_frame(end->messages, end->connection, request, end->last_stream + 1, left);
    if (frame == NULL)
        return none_if_left(NULL);
    PyObject *stream = PyLong_FromUnsignedLongLong(end->last_stream + 1);
    PyObject *call = stream == NULL ? NULL : new_call(self, stream, arguments[1], field(end->messages, REQUEST, request, Q_ID));
    if (call == NULL) {
        Py_DECREF(frame);
    } else if (queue_frame(end, frame) < 0) {
        Py_CLEAR(call);
    } else {
        end->last_stream++;
        if (enter(self, stream, call, left ? field(end->messages, REQUEST, request, Q_DEADLINE) : NULL) < 0)
            Py_CLEAR(call);
    }
    Py_XDECREF(stream);
    return call;
}

/* Take a call that has had its last response out of everything. */
static int end_call(ClientEnd *self, PyObject *stream, PyObject *call)
{
    PyObject *bucket = *call_field(self, call, L_BUCKET);
    int timed = bucket == NULL ? 0 : PyObject_IsTrue(bucket);
    if (timed < 0 || PyDict_DelItem(self->end.table, stream) < 0)
        return -1;
    Py_XSETREF(*call_field(self, call, L_SINK), Py_NewRef(self->no_sink));
    if (!timed)
        return 0;
    PyObject *removed = PyObject_CallMethodObjArgs(self->deadlines, texts.remove, stream, bucket, NULL);
    Py_XDECREF(removed);
    return removed == NULL ? -1 : 0;
}

/* Call a sink; what it raises is reported. */
static int respond(ClientEnd *self, PyObject *sink, PyObject *response)
{
    PyObject *result = PyObject_CallOneArg(sink, response);
    PyObject *error = result == NULL ? caught() : NULL;
    int reported = 0;
    if (result == NULL)
        reported = error == NULL ? -1 : notify(&self->end, texts.report, error, NULL, NULL);
    Py_XDECREF(result);
    Py_XDECREF(error);
    return reported;
}

static int close_if_drained(End *end)
{
    int draining = is_set(end, texts.draining);
    return draining > 0 ? notify(end, texts.close_if_drained, NULL, NULL, NULL) : draining;
}

/* Hand a response to the sink of a call in flight. */
static int deliver(ClientEnd *self, PyObject *stream, PyObject *call, PyObject *response, int final)
{
    End *end = &self->end;
    PyObject *sink = Py_XNewRef(*call_field(self, call, L_SINK));
    if (sink == NULL) {
        PyErr_SetString(PyExc_AttributeError, "sink");
        return -1;
    }
    int done = final ? end_call(self, stream, call) : 0;
    if (done == 0)
        done = respond(self, sink, response);
    Py_DECREF(sink);
    if (done == 0 && final && !is_cleared(end) && PyDict_GET_SIZE(end->table) == 0)
        done = close_if_drained(end);
    return done;
}

static int response_received(End *end, const struct frame *frame)
{
    ClientEnd *self = (ClientEnd *)end;
    int final = frame->flags & FINAL;
    PyObject *response = response_of(end->messages, frame->meta, frame->meta_size, final ? Py_True : Py_False);
    if (response == NULL)
        return PyErr_Occurred() ? -1 : 0;
    PyObject *stream = view_shared(end, ANSWER, response) < 0 ? NULL : PyLong_FromUnsignedLongLong(frame->stream);
    PyObject *call = stream == NULL ? NULL : Py_XNewRef(PyDict_GetItemWithError(end->table, stream));
    int handled = PyErr_Occurred() ? -1 : 1;
    if (call != NULL && Py_TYPE(call) != self->call)
        handled = 0;
    else if (call != NULL && deliver(self, stream, call, response, final) < 0)
        handled = -1;
    Py_XDECREF(call);
    Py_XDECREF(stream);
    Py_DECREF(response);
    return handled;
}

static PyObject *take_responses(ClientEnd *self, PyObject *const *arguments, Py_ssize_t count)
{
    return take_frames(&self->end, arguments, count, RESPONSE, response_received);
}

static int bind_call(ClientEnd *self, PyObject *call)
{
    self->call = (PyTypeObject *)Py_NewRef(call);
    return find_slots(self->call, L_NAMES, self->offsets, __FILE__);
}

static PyObject *new_client_end(PyTypeObject *type, PyObject *arguments, PyObject *names)
{
    static char *keywords[] = {"messages", "connection", "calls",   "flush", "deadlines",
                               "call",     "no_sink",    "limit", "max_frame", NULL};
    PyObject *messages, *connection, *calls, *flush, *deadlines, *call, *no_sink;
    Py_ssize_t limit, max_frame;
    if (!PyArg_ParseTupleAndKeywords(arguments, names, "OOOOOO!Onn", keywords, &messages, &connection, &calls, &flush,
                                     &deadlines, &PyType_Type, &call, &no_sink, &limit, &max_frame))
        return NULL;
    ClientEnd *self = (ClientEnd *)new_end(type, messages, connection, calls, flush);
    if (self == NULL)
        return NULL;
    self->end.limit = limit;
    self->end.max_frame = max_frame;
    self->deadlines = Py_NewRef(deadlines);
    self->no_sink = Py_NewRef(no_sink);
    self->zero = PyLong_FromLong(0);
    if (self->zero == NULL || bind_call(self, call) < 0)
        Py_CLEAR(self);
    return (PyObject *)self;
}

static int traverse_client_end(ClientEnd *self, visitproc visit, void *arg)
{
    Py_VISIT(self->call);
    Py_VISIT(self->no_sink);
    Py_VISIT(self->deadlines);
    return traverse_end(&self->end, visit, arg);
}

static void delete_client_end(ClientEnd *self)
{
    PyObject_GC_UnTrack(self);
    Py_XDECREF(self->call);
    Py_XDECREF(self->no_sink);
    Py_XDECREF(self->deadlines);
    Py_XDECREF(self->zero);
    delete_end(&self->end);
}

static PyMemberDef members[] = {END_MEMBERS, {NULL, 0, 0, 0, NULL}};

static PyMethodDef methods[] = {
    {"send", (PyCFunction)(void (*)(void))send_request, METH_FASTCALL, "Send a request."},
    {"take", (PyCFunction)(void (*)(void))take_responses, METH_FASTCALL, "Handle the responses in a buffer."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot slots[] = {
    {Py_tp_new, new_client_end},         {Py_tp_dealloc, delete_client_end},
    {Py_tp_traverse, traverse_client_end}, {Py_tp_clear, clear_end},
    {Py_tp_methods, methods},            {Py_tp_members, members},
    {0, NULL},
};

static PyType_Spec spec = {
    .name = "app.native.extension.ClientEnd",
    .basicsize = sizeof(ClientEnd),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE | Py_TPFLAGS_HAVE_GC,
    .slots = slots,
};

int add_client_end(PyObject *module)
{
    return add_type(module, &spec, NULL);
}
