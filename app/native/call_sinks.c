/* The type `CallSink`: what receives the response to a unary call. */
#include "calls.h"

#include <stddef.h>

#include "structmember.h"

typedef struct {
    PyObject_HEAD
    vectorcallfunc call_function;
    PyObject *calls;     /* `UnaryCalls` */
    PyObject *otherwise; /* called with what follows, and a response that is left to Python */
    PyObject *call, *entry, *request;
} CallSink;

static PyObject *receive_response(PyObject *object, PyObject *const *arguments, size_t flags, PyObject *names)
{
    CallSink *self = (CallSink *)object;
    if (PyVectorcall_NARGS(flags) != 1 || names != NULL || self->call == NULL) {
        PyErr_SetString(PyExc_TypeError, "a response");
        return NULL;
    }
    int done = respond_to_call((UnaryCalls *)self->calls, self->call, self->request, arguments[0]);
    if (done)
        return done < 0 ? NULL : Py_NewRef(Py_None);
    PyObject *all[] = {self->call, self->entry, self->request, arguments[0]};
    return PyObject_Vectorcall(self->otherwise, all, 4, NULL);
}

PyObject *make_sink(UnaryCalls *self, PyObject *const *arguments, Py_ssize_t count)
{
    if (count != 4) {
        PyErr_SetString(PyExc_TypeError, "otherwise, call, entry, request");
        return NULL;
    }
    CallSink *sink = PyObject_GC_New(CallSink, self->sink_type);
    if (sink == NULL)
        return NULL;
    sink->call_function = receive_response;
    sink->calls = Py_NewRef((PyObject *)self);
    sink->otherwise = Py_NewRef(arguments[0]);
    sink->call = Py_NewRef(arguments[1]);
    sink->entry = Py_NewRef(arguments[2]);
    sink->request = Py_NewRef(arguments[3]);
    PyObject_GC_Track(sink);
    return (PyObject *)sink;
}

static int traverse(CallSink *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(self->calls);
    Py_VISIT(self->otherwise);
    Py_VISIT(self->call);
    Py_VISIT(self->entry);
    Py_VISIT(self->request);
    return 0;
}

static int clear(CallSink *self)
{
    Py_CLEAR(self->call);
    Py_CLEAR(self->otherwise);
    Py_CLEAR(self->entry);
    Py_CLEAR(self->request);
    return 0;
}

static void delete_sink(CallSink *self)
{
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    clear(self);
    Py_CLEAR(self->calls);
    PyObject_GC_Del(self);
    Py_DECREF(type);
}

static PyMemberDef members[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(CallSink, call_function), READONLY, NULL},
    {0},
};

static PyType_Slot slots[] = {
    {Py_tp_dealloc, delete_sink},
    {Py_tp_traverse, traverse},
    {Py_tp_clear, clear},
    {Py_tp_call, PyVectorcall_Call},
    {Py_tp_members, members},
    {0, NULL},
};

static PyType_Spec spec = {
    .name = "app.native.extension.CallSink",
    .basicsize = sizeof(CallSink),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL |
             Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = slots,
};

PyTypeObject *make_sink_type(void)
{
    return (PyTypeObject *)PyType_FromSpec(&spec);
}
