/* The types `ServerEnd`, which hands requests to a handler, and `Reply`, by which that answers one of them. */
#include "ends.h"

#include <time.h>

typedef struct {
    End end;
    PyObject *handler;
    PyObject *nothing; /* the cancel function of a request that its handler has not accepted yet */
    PyObject *no_deadline;
    Py_ssize_t max_streams;
} ServerEnd;

typedef struct {
    PyObject_HEAD
    vectorcallfunc call;
    ServerEnd *end;
    PyObject *stream;
    uint64_t number; /* of the stream */
} Reply;

static PyTypeObject *reply_type;

/* Send a frame, a reference that is taken, of a request that is in flight. */
static PyObject *send(Reply *self, PyObject *frame, int final)
{
    End *end = &self->end->end;
    Py_ssize_t nbytes = PyBytes_GET_SIZE(frame);
    if (final && PyDict_DelItem(end->table, self->stream) < 0) {
        Py_DECREF(frame);
        return NULL;
    }
    if (queue_frame(end, frame) < 0)
        return NULL;
    if (end->nbytes > end->limit && !is_cleared(end)) {
        PyObject *newest = PyLong_FromSsize_t(nbytes);
        int applied = newest == NULL ? -1 : notify(end, texts.apply_back_pressure, newest, NULL, NULL);
        Py_XDECREF(newest);
        if (applied < 0)
            return NULL;
    }
    Py_RETURN_NONE;
}

/* Whether a request has no final response yet; -1 with an error. */
static int is_in_flight(const Reply *self)
{
    if (self->end == NULL || is_cleared(&self->end->end))
        return 0;
    return PyDict_Contains(self->end->end.table, self->stream);
}

static PyObject *call_reply(PyObject *object, PyObject *const *arguments, size_t flags, PyObject *names)
{
    Reply *self = (Reply *)object;
    if (PyVectorcall_NARGS(flags) != 1 || names != NULL) {
        PyErr_SetString(PyExc_TypeError, "a reply takes a response");
        return NULL;
    }
    int in_flight = is_in_flight(self);
    if (in_flight <= 0)
        return in_flight < 0 ? NULL : Py_NewRef(Py_None);
    End *end = &self->end->end;
    PyObject *frame = response_frame(end->messages, end->connection, arguments[0], self->number);
    if (frame != NULL)
        return send(self, frame, field(end->messages, ANSWER, arguments[0], A_FINAL) == Py_True);
    if (PyErr_Occurred() || notify(end, texts.deliver, self->stream, arguments[0], NULL) < 0)
        return NULL;
    Py_RETURN_NONE;
}

PyObject *send_plain(PyObject *sink, PyObject *const *values)
{
    if (Py_TYPE(sink) != reply_type)
        return NULL;
    Reply *self = (Reply *)sink;
    int in_flight = is_in_flight(self);
    if (in_flight <= 0)
        return in_flight < 0 ? NULL : Py_NewRef(Py_None);
    PyObject *frame = frame_of(self->end->end.messages, self->end->end.connection, values, self->number);
    return frame == NULL ? NULL : send(self, frame, 1);
}

static PyObject *new_reply(ServerEnd *end, PyObject *stream, uint64_t number)
{
    Reply *self = (Reply *)reply_type->tp_alloc(reply_type, 0);
    if (self == NULL)
        return NULL;
    self->call = call_reply;
    self->end = (ServerEnd *)Py_NewRef(end);
    self->stream = Py_NewRef(stream);
    self->number = number;
    return (PyObject *)self;
}

/* Return the deadline of a request that has so many microseconds left, on this process's clock. */
static PyObject *deadline_of(const ServerEnd *self, uint64_t left)
{
    struct timespec now;
    if (!left)
        return Py_NewRef(self->no_deadline);
    clock_gettime(CLOCK_MONOTONIC, &now);
    return PyFloat_FromDouble((double)now.tv_sec + (double)now.tv_nsec * 1e-9 + (double)left * 1e-6);
}

/* Keep the cancel function of a request that has no final response yet. */
static int keep(End *end, PyObject *stream, PyObject *cancel)
{
    int in_flight = is_cleared(end) ? 0 : PyDict_Contains(end->table, stream);
    return in_flight > 0 ? PyDict_SetItem(end->table, stream, cancel) : in_flight;
}

/* Give a request to the handler. */
static int hand_over(ServerEnd *self, PyObject *request, PyObject *stream, uint64_t number)
{
    End *end = &self->end;
    PyObject *reply = new_reply(self, stream, number);
    if (reply == NULL || PyDict_SetItem(end->table, stream, self->nothing) < 0) {
        Py_XDECREF(reply);
        return -1;
    }
    PyObject *arguments[] = {self->handler, request, reply};
    PyObject *cancel = PyObject_VectorcallMethod(texts.submit, arguments, 3, NULL);
    PyObject *error = cancel == NULL ? caught() : NULL;
    int done = -1;
    if (cancel != NULL)
        done = keep(end, stream, cancel);
    else if (error != NULL)
        done = notify(end, texts.refuse, reply, request, error);
    Py_XDECREF(cancel);
    Py_XDECREF(error);
    Py_DECREF(reply);
    return done;
}

static int request_received(End *end, const struct frame *frame)
{
    ServerEnd *self = (ServerEnd *)end;
    if (PyDict_GET_SIZE(end->table) >= self->max_streams)
        return 0;
    PyObject *stream = PyLong_FromUnsignedLongLong(frame->stream);
    int in_use = stream == NULL ? -1 : PyDict_Contains(end->table, stream);
    PyObject *deadline = in_use ? NULL : deadline_of(self, frame->left);
    PyObject *request = deadline == NULL ? NULL : request_of(end->messages, frame->meta, frame->meta_size, deadline);
    int handled = PyErr_Occurred() ? -1 : 0;
    if (request != NULL)
        handled = view_shared(end, REQUEST, request) < 0 || hand_over(self, request, stream, frame->stream) < 0 ? -1 : 1;
    Py_XDECREF(request);
    Py_XDECREF(deadline);
    Py_XDECREF(stream);
    return handled;
}

static PyObject *take_requests(ServerEnd *self, PyObject *const *arguments, Py_ssize_t count)
{
    if (self->handler == NULL) {
        PyErr_SetString(PyExc_RuntimeError, "without a handler");
        return NULL;
    }
    return take_frames(&self->end, arguments, count, INFER, request_received);
}

static PyObject *new_server_end(PyTypeObject *type, PyObject *arguments, PyObject *names)
{
    static char *keywords[] = {"messages", "connection", "streams",   "flush", "handler",
                               "nothing",  "limit",      "max_frame", "max_streams", NULL};
    PyObject *messages, *connection, *streams, *flush, *handler, *nothing;
    Py_ssize_t limit, max_frame, max_streams;
    if (!PyArg_ParseTupleAndKeywords(arguments, names, "OOOOOOnnn", keywords, &messages, &connection, &streams, &flush,
                                     &handler, &nothing, &limit, &max_frame, &max_streams))
        return NULL;
    ServerEnd *self = (ServerEnd *)new_end(type, messages, connection, streams, flush);
    if (self == NULL)
        return NULL;
    self->end.limit = limit;
    self->end.max_frame = max_frame;
    self->max_streams = max_streams;
    self->handler = Py_NewRef(handler);
    self->nothing = Py_NewRef(nothing);
    self->no_deadline = PyFloat_FromDouble(0.0);
    if (self->no_deadline == NULL)
        Py_CLEAR(self);
    return (PyObject *)self;
}

static int traverse_server_end(ServerEnd *self, visitproc visit, void *arg)
{
    Py_VISIT(self->handler);
    Py_VISIT(self->nothing);
    return traverse_end(&self->end, visit, arg);
}

static int clear_server_end(ServerEnd *self)
{
    Py_CLEAR(self->handler);
    return clear_end(&self->end);
}

static void delete_server_end(ServerEnd *self)
{
    PyObject_GC_UnTrack(self);
    Py_XDECREF(self->handler);
    Py_XDECREF(self->nothing);
    Py_XDECREF(self->no_deadline);
    delete_end(&self->end);
}

static int traverse_reply(Reply *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(self->end);
    return 0;
}

static int clear_reply(Reply *self)
{
    Py_CLEAR(self->end);
    return 0;
}

static void delete_reply(Reply *self)
{
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    clear_reply(self);
    Py_XDECREF(self->stream);
    type->tp_free(self);
    Py_DECREF(type);
}

static PyMemberDef members[] = {END_MEMBERS, {NULL, 0, 0, 0, NULL}};

static PyMethodDef methods[] = {
    {"take", (PyCFunction)(void (*)(void))take_requests, METH_FASTCALL, "Handle the requests in a buffer."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot slots[] = {
    {Py_tp_new, new_server_end},           {Py_tp_dealloc, delete_server_end},
    {Py_tp_traverse, traverse_server_end}, {Py_tp_clear, clear_server_end},
    {Py_tp_methods, methods},              {Py_tp_members, members},
    {0, NULL},
};

static PyType_Spec spec = {
    .name = "app.native.extension.ServerEnd",
    .basicsize = sizeof(ServerEnd),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE | Py_TPFLAGS_HAVE_GC,
    .slots = slots,
};

static PyMemberDef reply_members[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(Reply, call), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot reply_slots[] = {
    {Py_tp_dealloc, delete_reply},  {Py_tp_traverse, traverse_reply}, {Py_tp_clear, clear_reply},
    {Py_tp_call, PyVectorcall_Call}, {Py_tp_members, reply_members},   {0, NULL},
};

static PyType_Spec reply_spec = {
    .name = "app.native.extension.Reply",
    .basicsize = sizeof(Reply),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL |
             Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = reply_slots,
};

int add_server_end(PyObject *module)
{
    reply_type = (PyTypeObject *)PyType_FromModuleAndSpec(module, &reply_spec, NULL);
    return reply_type == NULL ? -1 : add_type(module, &spec, NULL);
}
