/* The type `UnaryCalls`. */
#include "calls.h"

static const char *const *const slot_names[CALL_TYPES] = {
    [CONNECTION] = C_NAMES, [READER] = R_NAMES,  [OUTPUT] = O_NAMES, [KEEPALIVE] = K_NAMES, [STREAM] = S_NAMES,
    [CALL] = U_NAMES,       [REQUEST] = Q_NAMES, [ANSWER] = A_NAMES, [TENSOR] = T_NAMES,    [WANTED] = W_NAMES,
    [MESSAGE] = M_NAMES};

int set_number(const UnaryCalls *self, enum call_type type, PyObject *object, int number, long long value)
{
    PyObject *made = PyLong_FromLongLong(value);
    if (made == NULL)
        return -1;
    set(self, type, object, number, made);
    return 0;
}

int get_count(const UnaryCalls *self, PyObject *name, long long *count)
{
    PyObject *value = PyObject_GetAttr(self->state, name);
    if (value == NULL)
        return -1;
    int found = get_number(value, count);
    Py_DECREF(value);
    if (!found)
        PyErr_SetString(PyExc_TypeError, "a count is no int");
    return found ? 0 : -1;
}

int set_count(const UnaryCalls *self, PyObject *name, long long count)
{
    PyObject *value = PyLong_FromLongLong(count);
    int result = value == NULL ? -1 : PyObject_SetAttr(self->state, name, value);
    Py_XDECREF(value);
    return result;
}

static int bind(UnaryCalls *self, PyObject *types)
{
    if (PyTuple_GET_SIZE(types) != CALL_TYPES || PyBytes_GET_SIZE(self->huffman) != HUFFMAN_SIZE) {
        PyErr_SetString(PyExc_TypeError, "a wrong number of types or states");
        return -1;
    }
    for (int i = 0; i < CALL_TYPES; i++) {
        PyObject *type = PyTuple_GET_ITEM(types, i);
        if (!PyType_Check(type)) {
            PyErr_SetString(PyExc_TypeError, "types are expected");
            return -1;
        }
        self->types[i] = (PyTypeObject *)type;
        if (slot_names[i] != NULL && find_slots(self->types[i], slot_names[i], self->slots[i], __FILE__) < 0)
            return -1;
    }
    return 0;
}

static int make_constants(UnaryCalls *self)
{
    self->request_names = Py_BuildValue("(sssssss)", "sequence_id", "sequence_start", "sequence_end", "priority", "timeout_us",
                                        "regions", "deadline");
    self->output_names = Py_BuildValue("(s)", "region");
    self->sink_type = make_sink_type();
    self->decoder_type = make_decoder_type();
    self->zero = PyLong_FromLong(0);
    self->no_deadline = PyFloat_FromDouble(0.0);
    return PyErr_Occurred() ? -1 : 0;
}

static PyObject *new_calls(PyTypeObject *type, PyObject *arguments, PyObject *keywords)
{
    static char *keyword_names[] = {"types",       "state",        "handlers",     "on_cancel",
                                    "headers",     "trailers",     "static_table", "huffman",
                                    "decode_metadata", "refuse",   "decode_request", "max_header",   "max_calls",
                                    "max_streams", "max_buffered", "max_message",  "max_control_frames",
                                    "stream_window", "connection_window", "max_frame", NULL};
    UnaryCalls *self = (UnaryCalls *)type->tp_alloc(type, 0);
    PyObject *types;
    if (self == NULL)
        return NULL;
    self->given = keywords == NULL ? PyTuple_Pack(1, arguments) : PyTuple_Pack(2, arguments, keywords);
    if (self->given == NULL ||
        !PyArg_ParseTupleAndKeywords(arguments, keywords, "O!OO!OSSO!SOOOLLLLLLLLL", keyword_names, &PyTuple_Type, &types,
                                     &self->state, &PyDict_Type, &self->handlers, &self->on_cancel, &self->headers,
                                     &self->trailers, &PyTuple_Type, &self->static_table, &self->huffman,
                                     &self->decode_metadata, &self->refuse, &self->decode_request, &self->max_header,
                                     &self->max_calls, &self->max_streams, &self->max_buffered, &self->max_message,
                                     &self->max_control_frames, &self->stream_window, &self->connection_window,
                                     &self->max_frame) ||
        bind(self, types) < 0 || make_constants(self) < 0)
        Py_CLEAR(self);
    return (PyObject *)self;
}

/* Without `clear`: whatever it is in a cycle with breaks it. */
static int traverse(UnaryCalls *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(self->given);
    return 0;
}

static void delete_calls(UnaryCalls *self)
{
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    PyObject *made[] = {self->given, self->request_names, self->output_names, self->zero, self->no_deadline,
                        (PyObject *)self->sink_type, (PyObject *)self->decoder_type};
    for (size_t i = 0; i < sizeof made / sizeof *made; i++)
        Py_XDECREF(made[i]);
    type->tp_free(self);
    Py_DECREF(type);
}

static PyMethodDef methods[] = {
    {"receive", (PyCFunction)(void (*)(void))receive_calls, METH_FASTCALL, NULL},
    {"sink", (PyCFunction)(void (*)(void))make_sink, METH_FASTCALL, NULL},
    {"header_decoder", (PyCFunction)make_decoder, METH_NOARGS, NULL},
    {"read", (PyCFunction)(void (*)(void))read_message, METH_FASTCALL, NULL},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot slots[] = {
    {Py_tp_new, new_calls},
    {Py_tp_dealloc, delete_calls},
    {Py_tp_traverse, traverse},
    {Py_tp_methods, methods},
    {0, NULL},
};

static PyType_Spec spec = {
    .name = "app.native.extension.UnaryCalls",
    .basicsize = sizeof(UnaryCalls),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE | Py_TPFLAGS_HAVE_GC,
    .slots = slots,
};

int add_calls(PyObject *module)
{
    return add_type(module, &spec, NULL);
}
