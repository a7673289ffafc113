/* The type `Matched`: a request that was read, until it is answered. */
#include "http_requests.h"

#include "structmember.h"

/* Have the connection send a response, and go on with its next request. */
static PyObject *send(Matched *self, PyObject *bytes)
{
    PyObject *connection = self->connection;
    self->connection = NULL;
    PyObject *done = PyObject_CallMethod(connection, "write", "O", bytes);
    if (done != NULL) {
        Py_DECREF(done);
        done = PyObject_CallMethod(connection, "exchange_done", "O", Py_True);
    }
    Py_DECREF(connection);
    return done;
}

static int keeps_alive(const Matched *self)
{
    PyObject *keeps = PyObject_GetAttrString(self->connection, "keeps_alive");
    Py_XDECREF(keeps);
    return keeps == Py_True;
}

/* Receive a response: as the sink of its request. */
static PyObject *receive(PyObject *callable, PyObject *const *arguments, size_t count, PyObject *names)
{
    Matched *self = (Matched *)callable;
    if (PyVectorcall_NARGS(count) != 1 || names != NULL) {
        PyErr_SetString(PyExc_TypeError, "one response");
        return NULL;
    }
    if (self->sink != NULL)
        return PyObject_CallOneArg(self->sink, arguments[0]);
    if (self->connection == NULL || self->owner == NULL) {
        Py_CLEAR(self->call);
        Py_RETURN_NONE;
    }
    PyObject *bytes = keeps_alive(self) ? write_http_response(self, arguments[0]) : NULL;
    PyObject *result;
    Py_INCREF(self);
    if (bytes != NULL) {
        Py_CLEAR(self->call); /* it has this as its sink */
        result = send(self, bytes);
        Py_DECREF(bytes);
    } else {
        PyErr_Clear(); /* Python writes the response, or finds what is wrong with it */
        result = PyObject_CallMethod(self->owner, "deliver", "OO", self, arguments[0]);
    }
    Py_DECREF(self);
    return result;
}

/* Handle that the client has disconnected. */
static PyObject *disconnect(Matched *self, PyObject *Py_UNUSED(ignored))
{
    PyObject *call = self->call;
    self->call = NULL;
    Py_CLEAR(self->connection);
    if (call == NULL || call == Py_None) {
        Py_XDECREF(call);
        Py_RETURN_NONE;
    }
    PyObject *result = PyObject_CallMethod(call, "cancel", NULL);
    Py_DECREF(call);
    return result;
}

static int traverse(Matched *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(self->requests);
    Py_VISIT(self->owner);
    Py_VISIT(self->connection);
    Py_VISIT(self->request);
    Py_VISIT(self->call);
    Py_VISIT(self->entry);
    Py_VISIT(self->sink);
    return 0;
}

static int clear(Matched *self)
{
    Py_CLEAR(self->connection);
    Py_CLEAR(self->request);
    Py_CLEAR(self->call);
    Py_CLEAR(self->entry);
    Py_CLEAR(self->sink);
    return 0;
}

static void delete(Matched *self)
{
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    clear(self);
    Py_XDECREF(self->owner);
    Py_XDECREF(self->requests);
    type->tp_free(self);
    Py_DECREF(type);
}

static PyMemberDef members[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(Matched, vectorcall), READONLY, NULL},
    {"owner", T_OBJECT, offsetof(Matched, owner), READONLY, NULL},
    {"connection", T_OBJECT, offsetof(Matched, connection), READONLY, NULL},
    {"request", T_OBJECT, offsetof(Matched, request), READONLY, NULL},
    {"call", T_OBJECT, offsetof(Matched, call), 0, NULL},
    {"entry", T_OBJECT, offsetof(Matched, entry), 0, NULL},
    {"binary_default", T_BOOL, offsetof(Matched, wishes.is_binary), READONLY, NULL},
    {"needs_json_encoding", T_BOOL, offsetof(Matched, wishes.needs_json), READONLY, NULL},
    {"sink", T_OBJECT, offsetof(Matched, sink), 0, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyMethodDef methods[] = {
    {"disconnect", (PyCFunction)disconnect, METH_NOARGS, "Handle that the client has disconnected."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot slots[] = {
    {Py_tp_call, PyVectorcall_Call},
    {Py_tp_traverse, traverse},
    {Py_tp_clear, clear},
    {Py_tp_dealloc, delete},
    {Py_tp_members, members},
    {Py_tp_methods, methods},
    {0, NULL},
};

PyType_Spec matched_specification = {
    .name = "app.native.extension.Matched",
    .basicsize = sizeof(Matched),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_IMMUTABLETYPE |
             Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = slots,
};

Matched *make_matched(HttpRequests *requests, PyObject *owner, PyObject *connection, PyObject *request,
                      struct wishes wishes)
{
    Matched *self = (Matched *)requests->matched->tp_alloc(requests->matched, 0);
    if (self == NULL)
        return NULL;
    self->vectorcall = receive;
    self->requests = (HttpRequests *)Py_NewRef(requests);
    self->owner = Py_NewRef(owner);
    self->connection = Py_NewRef(connection);
    self->request = Py_NewRef(request);
    self->wishes = wishes;
    return self;
}
